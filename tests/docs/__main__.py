"""`make docs`: write every generated block of the documents again."""

from tests.docs.blocks import DOCUMENTS, ROOT, filled


def main() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        if (new := filled(text)) != text:
            document.write_text(new)
            print(f"{document.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
