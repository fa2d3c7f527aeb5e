from pathlib import Path, PurePath

import pytest

from tools import budget

LIMITS = budget.Budget(
    packages=["server", "workers"],
    code_lines=30,
    others=["tests"],
    function_lines=5,
    triton_function_lines=6,
)


def found(path: str, text: str) -> list[str]:
    """What a tree of one file has over LIMITS."""
    return list(budget.over_budget({PurePath(path): text}, LIMITS))


def function(lines: int, head: str = "def long():") -> str:
    return head + "\n" + "    pass\n" * (lines - 1)


CODE = """#!shebang
'''A module
without code.'''

import os  # 1

def f(
    a="# 3"
):
    '''One.'''
    # why
    return '''7

9'''

class A:
    '''Two.'''

    x = 1
    '''What
    x is.'''
"""


def test_code_is_what_is_neither_docstring_nor_comment_nor_blank():
    assert budget.code_lines(CODE) == 9
    assert budget.code_lines("") == budget.code_lines("\n# a\n\n") == 0


def test_the_code_of_all_packages_together_is_bounded_and_that_of_others_is_not():
    sources = {PurePath("server/a.py"): "x = 1\n" * 20, PurePath("workers/b.py"): "x = 1\n" * 10}
    sources[PurePath("tests/c.py")] = "x = 1\n" * 100
    assert list(budget.over_budget(sources, LIMITS)) == []
    sources[PurePath("workers/c.py")] = '"""No code."""\nx = 1\n'
    assert list(budget.over_budget(sources, LIMITS)) == [
        "server, workers: 31 lines of code, at most 30"
    ]


def test_a_function_counts_from_its_def_to_its_last_line():
    assert found("server/app.py", "@cache\n@cache\n" + function(5)) == []
    assert found("server/app.py", "\n" + function(6)) == [
        "server/app.py:2: long has 6 lines, at most 5"
    ]
    assert found("server/app.py", function(6, "async def long():")) != []
    assert found("server/app.py", 'def long():\n    """a\n\n\n\n    b"""\n') != []


@pytest.mark.parametrize(
    "outer", ["class A:", "if x:", "def f():", "with x:", "match x:\n  case 1:"]
)
def test_functions_are_found_wherever_they_stand(outer):
    inside = "".join(f"      {line}\n" for line in function(6).splitlines())
    reported = [
        line for line in found("server/app.py", f"{outer}\n{inside}") if ": long has" in line
    ]
    assert len(reported) == 1


@pytest.mark.parametrize("decorator", ["@triton.jit", "@triton.jit(do_not_specialize=['n'])"])
def test_a_triton_function_has_a_limit_of_its_own(decorator):
    assert found("workers/a.py", f"{decorator}\n{function(6)}") == []
    assert found("workers/a.py", f"{decorator}\n{function(7)}") == [
        "workers/a.py:2: long has 7 lines, at most 6"
    ]
    assert found("workers/a.py", f"@torch.jit.script\n{function(6)}") != []


def test_the_table_sums_a_package_and_its_folders():
    names = ("server/cli.py", "server/api/chat.py", "server/api/old/chat.py", "workers/a.py")
    rows = list(budget.table({PurePath(name): "x = 1\n\n" * 700 for name in names}))
    assert [row.split() for row in rows] == [
        ["server", "4,200", "2,100", ".", "700,", "api", "1,400"],
        ["workers", "1,400", "700", ".", "700"],
    ]


def test_the_command_fails_and_names_what_is_over(tmp_path, monkeypatch, capsys):
    limits = "code_lines = 3\nfunction_lines = 2\ntriton_function_lines = 2\nothers = []\n"
    table = f'[tool.penstock.budget]\npackages = ["server"]\n{limits}'
    (tmp_path / "pyproject.toml").write_text(table)
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "app.py").write_text("x = 1\n" * 3)
    monkeypatch.chdir(tmp_path)
    budget.main()
    assert "server" in capsys.readouterr().out
    (tmp_path / "server" / "app.py").write_text("x = 1\n" * 4)
    with pytest.raises(SystemExit, match="server: 4 lines of code, at most 3"):
        budget.main()


def test_the_repository_states_every_limit():
    repository = Path(budget.__file__).parents[1]
    limits = budget.read_budget(repository)
    folders = {*limits.packages, *limits.others}
    assert {path.parts[0] for path in budget.read_sources(repository, limits)} == folders
