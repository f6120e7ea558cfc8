"""`make docs`: write every generated block of the documents and every schema again."""

from tests.docs.blocks import DOCUMENTS, ROOT, filled
from tests.docs.schemas import FOLDER, TYPES, schema


def main() -> None:
    made = {document: filled(document.read_text()) for document in DOCUMENTS}
    for path, text in {**made, **{FOLDER / name: schema(name) for name in TYPES}}.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
