"""What shells of hosts run: scripts without a word of a description in them. The words come as $1, $2, ....

So no shell reads a word as anything but a word: over ssh, by srun, or in a script for Kubernetes' nodes.
"""

from __future__ import annotations


def shell(script: str, *words: str) -> tuple[str, ...]:
    """A command that runs one of the scripts below with these words."""
    if script not in SCRIPTS:
        raise ValueError("a script has none of a description's words in it: add it to SCRIPTS")
    return ("sh", "-c", script, "sh", *words)


def comment(text: str) -> str:
    """A line of a script that says something: one line, whatever is in the text."""
    return "# " + "".join(character if character.isprintable() else " " for character in text)


def _keeping(before: str, do: str) -> str:
    """Write what `before` prints into the file $1, then `do`.

    The file is written once: after a failed run it still has what was there at first. Never through a link (set -C).
    """
    keep = f'rm -f "$1" && (umask 077 && set -C && {before} >"$1")'
    return f'{{ test -s "$1" || {{ {keep}; }} || {{ rm -f "$1"; exit 1; }}; }} && {do}'


# A card has no driver: dpdk-devbind.py takes "none" for unbinding.
_DRIVER = 'basename "$(readlink "/sys/bus/pci/devices/$2/driver" || echo none)"'

#: COUNT PAGES: the file of their number, and how many there have to be
HAS_PAGES = 'test "$(cat "$1")" -ge "$2"'
#: KEPT COUNT PAGES; KEPT keeps how it was before
RESERVE_PAGES = _keeping('cat "$2"', 'echo "$3" >"$2" && test "$(cat "$2")" -ge "$3"')
#: KEPT COUNT
RELEASE_PAGES = 'before=$(cat "$1") && echo "$before" >"$2" && rm "$1"'
#: KEPT PCI-ADDRESS
TAKE_CARD = _keeping(_DRIVER, 'dpdk-devbind.py --bind=vfio-pci "$2"')
#: KEPT PCI-ADDRESS; dpdk-devbind.py ends well even when it has not done it
GIVE_CARD_BACK = (
    f'before=$(cat "$1") && dpdk-devbind.py --bind="$before" "$2" && test "$({_DRIVER})" = "$before" && rm "$1"'
)
#: KEPT INTERFACE MTU
SET_MTU = _keeping('cat "/sys/class/net/$2/mtu"', 'ip link set dev "$2" mtu "$3"')
#: KEPT INTERFACE
RESET_MTU = 'before=$(cat "$1") && ip link set dev "$2" mtu "$before" && rm "$1"'

#: FOLDER: makes it for this user alone, mode 700, or is content with one that is so. All on the way belongs to root or
#: this user, and to nobody who could put something else in its place: links, and where they lead through, too.
#: keeper/places.py does the same.
MAKE_FOLDER = """
umask 077
refuse() { echo "$1: remove it, or name another run folder" >&2; exit 1; }
trusted() { # NAME WHAT
  owner=$(stat -c %u -- "$1") || exit 1
  [ "$owner" = 0 ] || [ "$owner" = "$(id -u)" ] || refuse "$2 is another user's"
}
cd / || exit 1
left=${1#/}
links=0
while [ -n "$left" ]; do
  name=${left%%/*}
  left=${left#"$name"}
  left=${left#/}
  case $name in
    '' | .) continue ;;
  esac
  if [ -L "$name" ] && [ -n "$left" ]; then
    trusted "$name" "a link in $1"
    links=$((links + 1))
    [ "$links" -le 40 ] || refuse "$1 leads through too many links"
    target=$(readlink -- "$name") || exit 1
    case $target in
      /*) cd / || exit 1 ;;
    esac
    left=$target/$left
    continue
  fi
  there=
  if [ "$name" != .. ]; then
    mkdir -- "$name" 2>/dev/null
    there=$(pwd -P)
    there=${there%/}/$name
  fi
  cd -P -- "$name" || exit 1
  [ -z "$there" ] || [ "$(pwd -P)" = "$there" ] || refuse "a link in $1 is another user's"
  trusted . "${there:-$name}"
  case $(stat -c %A .) in
    d???????w[!tT]) refuse "${there:-$name} may be written by all" ;;
  esac
done
[ "$(stat -c %u:%a .)" = "$(id -u):700" ] || refuse "$1 is there already, and not this user's with mode 700"
""".strip()
#: FILE MODE: writes its input, in a folder that MAKE_FOLDER has made
WRITE_FILE = 'umask 077 && rm -f -- "$1" && set -C && cat >"$1" && chmod "$2" -- "$1"'

SCRIPTS = frozenset(
    {
        HAS_PAGES,
        RESERVE_PAGES,
        RELEASE_PAGES,
        TAKE_CARD,
        GIVE_CARD_BACK,
        SET_MTU,
        RESET_MTU,
        MAKE_FOLDER,
        WRITE_FILE,
    }
)
