"""What a declaration may say, and what becomes of it; see tests/test_command_lines.py for use."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.definition import (
    check,
    group,
    optional_group,
    required,
    setting,
)
from blockdraft_runtime.configuration.values import settings_of


@dataclass(frozen=True, slots=True)
class Lock:
    certificate: Path = required("the certificate", flag="cert")
    key: Path = required("its key")


@dataclass(frozen=True, slots=True)
class Size:
    width: int = setting(4, "how wide", minimum=1, maximum=9)
    height: int = setting(2, "how high")

    def __post_init__(self) -> None:
        check(self)
        if self.height > self.width:
            raise ValueError(f"--height must not exceed --width, got {self.height}")


@dataclass(frozen=True, slots=True)
class House:
    street: str = required("where it is")
    names: tuple[str, ...] = setting(("a b",), "who lives there", flag="name")
    floors: tuple[int, ...] = setting((), "which floors", separator=",", distinct=True)
    rent: float = setting(0.5, "of a day", alias="price")
    heated: bool = setting(True, "whether it is warm")
    colour: Literal["red", "blue"] | None = setting("red", "of the wall")
    lock: Lock | None = optional_group()
    size: Size = group(lambda: Size(width=5))
    ungiven: int = 7


HOUSE = Configuration("build house", House)


def read(*flags: str, file: Path | None = None, **environ: str) -> House:
    parser = argparse.ArgumentParser()
    HOUSE.add_arguments(parser)
    more = () if file is None else (f"--config={file}",)
    args = parser.parse_args(["--street=s", *flags, *more])
    return HOUSE.resolve(vars(args), {f"BLOCKDRAFT_BUILD_HOUSE_{k}": v for k, v in environ.items()})


def written(folder: Path, text: str) -> Path:
    file = folder / "house.toml"
    file.write_text(text, "utf-8")
    return file


def test_only_what_is_declared_is_a_setting() -> None:
    assert list(HOUSE.settings) == [
        *("street", "name", "floors", "rent", "heated", "colour", "cert", "key", "width", "height")
    ]


def test_a_group_has_the_defaults_of_its_field() -> None:
    assert HOUSE.settings["width"].default == 5
    assert read().size == Size(width=5, height=2)
    assert read("--height=3").size == Size(width=5, height=3)


def test_what_is_required_must_be_given() -> None:
    with pytest.raises(ValueError, match=r"^--street must be given$"):
        HOUSE.resolve({}, {})


def test_an_optional_group_is_given_whole_or_not_at_all() -> None:
    assert read().lock is None
    assert read("--cert=c", KEY="k").lock == Lock(Path("c"), Path("k"))
    for flag in ("--cert=c", "--key=k"):
        with pytest.raises(ValueError, match=r"^--cert and --key need each other$"):
            read(flag)


def test_a_list_is_repeated_or_listed_and_a_variable_is_a_command_line() -> None:
    assert read("--name", "x", "y", "--name=z").names == ("x", "y", "z")
    assert read(NAME="x 'y z'").names == ("x", "y z")
    assert read("--floors=1,2", FLOORS="3").floors == (1, 2)
    assert read(FLOORS="3,4").floors == (3, 4)


def test_a_list_may_have_to_have_no_item_twice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--floors has the same value twice"):
        read("--floors=1,2,01")
    with pytest.raises(ValueError, match=r"^floors in .* has the same value twice"):
        read(file=written(tmp_path, "[build.house]\nfloors = [1, 1]\n"))


@pytest.mark.parametrize("text", ["inf", "nan", "x"])
def test_numbers_are_finite(text: str) -> None:
    with pytest.raises(ValueError, match=f"^--rent must be a number, got '{text}'"):
        read(f"--rent={text}")


def test_an_alias_means_the_same_everywhere(tmp_path: Path) -> None:
    file = written(tmp_path, "[build.house]\nprice = 4\n")
    assert read(file=file).rent == 4
    assert read(file=file, PRICE="3").rent == 3
    assert read("--price=1", file=file, RENT="2", PRICE="3").rent == 1
    assert read(RENT="2", PRICE="3").rent == 2
    assert HOUSE.flags(read("--price=1")) == ("--street=s", "--rent=1.0")
    assert {"BLOCKDRAFT_BUILD_HOUSE_RENT", "BLOCKDRAFT_BUILD_HOUSE_PRICE"} <= HOUSE.variables
    with pytest.raises(ValueError, match=r"^BLOCKDRAFT_BUILD_HOUSE_PRICE must be a number"):
        read(PRICE="dear")


def test_a_switch_has_both_directions() -> None:
    assert read("--no-heated", HEATED="true").heated is False
    assert read("--heated", HEATED="off").heated is True
    assert read(HEATED="Off").heated is False
    assert read(HEATED="Yes").heated is True


def test_none_is_a_word_where_it_is_not_the_default() -> None:
    assert read("--colour=none").colour is None
    assert HOUSE.flags(read("--colour=none")) == ("--street=s", "--colour=none")


def test_a_file_has_types(tmp_path: Path) -> None:
    file = written(tmp_path, '[build.house]\nfloors = [1, 2]\nheated = false\nname = ["x"]\n')
    assert read(file=file) == House("s", names=("x",), floors=(1, 2), heated=False)
    for line, wanted in (
        ('width = "5"', "a whole number, got '5'"),
        ("width = 5.5", "a whole number, got 5.5"),
        ("width = true", "a whole number, got True"),
        ("heated = 1", "true or false, got 1"),
        ("key = 1", "a text, got 1"),
        ("floors = 1", "a list, got 1"),
        ("width = 10", "at least 1 and at most 9, got 10"),
    ):
        name = line.partition(" ")[0]
        file = written(tmp_path, f"[build.house]\n{line}\n")
        with pytest.raises(ValueError, match=rf"^{name} in \[build.house\] of .* must be {wanted}"):
            read(file=file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[build.house]\nwidht = 1\n", r"has no setting widht; did you mean width\?"),
        ("[build.house]\nungiven = 1\n", "has no setting ungiven$"),
        ("[build.hose]\n", r"has no section \[build.house\]; did you mean hose\?"),
        ("", r"has no section \[build.house\]$"),
        ("build = 1", r"has no section \[build.house\]"),
        ("[build", "house.toml of --config is no TOML: "),
    ],
)
def test_a_file_that_says_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(file=written(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"house\.toml of --config cannot be read: No such file"):
        read(file=tmp_path / "house.toml")


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    file = written(tmp_path, "[build.house]\nwidth = 8\n")
    assert read(CONFIG=str(file)).size.width == 8


def test_a_contradiction_says_where_its_parts_come_from(tmp_path: Path) -> None:
    file = written(tmp_path, "[build.house]\nheight = 6\n")
    message = (
        r"^--height must not exceed --width, got 6 \(--width is BLOCKDRAFT_BUILD_HOUSE_WIDTH, "
        r"--height is height in \[build.house\] of .*house.toml\)$"
    )
    with pytest.raises(ValueError, match=message):
        read(file=file, WIDTH="3", RENT="2")


def test_a_bad_value_ends_the_process_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def run(args: argparse.Namespace) -> int:
        HOUSE.read(args)
        raise AssertionError("not reached")

    with pytest.raises(SystemExit) as caught:
        HOUSE.main(run, ["--street=s", "--width=x"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "blockdraft build house: --width must be a whole number, got 'x'\n"
    )


def test_a_flag_is_not_taken_for_a_longer_one(capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: argparse.Namespace) -> int:
        raise AssertionError("not reached")

    with pytest.raises(SystemExit) as caught:
        HOUSE.main(run, ["--stree=s", "--width=1"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --stree=s" in capsys.readouterr().err


def test_parts_that_share_a_setting_must_agree() -> None:
    @dataclass(frozen=True)
    class Street:
        left: Size = group(lambda: Size(width=3))
        right: Size = group(lambda: Size(width=3), without=("height",))

    found = settings_of(Street)
    assert found["width"].paths == (("left", "width"), ("right", "width"))
    assert found["height"].paths == (("left", "height"),)
    street = Configuration("street", Street).resolve({"width": "6"}, {})
    assert (street.left.width, street.right.width) == (6, 6)

    @dataclass(frozen=True)
    class Crooked:
        left: Size = group(lambda: Size(width=3))
        right: Size = group(Size)

    with pytest.raises(TypeError, match="--width means two things"):
        settings_of(Crooked)
