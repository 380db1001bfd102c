"""Build the site, guide and API reference, into build/docs (make docs), and check it. Needs no network."""

import argparse
import shutil
import sys
from pathlib import Path

from link_check import check_repository, check_site
from sphinx.cmd.build import build_main

HERE = Path(__file__).resolve().parent
#: Visitors start here: README.md is the first page, but servers look for another name.
_FIRST_PAGE = '<!doctype html><title>byteps_thc</title><meta http-equiv="refresh" content="0; url=README.html">\n'
_STRICT = ["--quiet", "--fail-on-warning"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=HERE.parents[1], help="folder of README.md and docs/")
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "build/docs")
    parser.add_argument("--external", action="store_true", help="ask whether links to other sites work, too")
    args = parser.parse_args()
    source, output = args.source.resolve(), args.output.resolve()
    if source.is_relative_to(output):
        parser.error(f"--output {args.output}: what is there is deleted, and the sources are in it; name another")
    shutil.rmtree(output, ignore_errors=True)  # removes old pages; and shows all warnings again
    pages = ["--conf-dir", str(HERE), "--doctree-dir", f"{output}.doctrees"]
    # All afresh: an unchanged page may link to a removed one.
    if status := build_main([*pages, *_STRICT, "--fresh-env", "--builder", "html", str(source), str(output)]):
        return status
    (output / "index.html").write_text(_FIRST_PAGE, encoding="utf-8")
    problems = check_site(output) + check_repository(source)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 1
    print(f"wrote {output / 'index.html'}")
    if not args.external:
        return 0
    return build_main([*pages, *_STRICT, "--builder", "linkcheck", str(source), f"{output}.external"])


if __name__ == "__main__":
    raise SystemExit(main())
