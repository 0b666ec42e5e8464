package runner

import (
	"strconv"
	"strings"
)

// WrongFormat says that a file names another format than the one that is read,
// both as "name/version". One of a later version is told apart from what is no
// such file at all: its hint says what reads it.
func WrongFormat(want, got string) *Error {
	e := Errorf(Invalid, "format: want %q, got %.60q", want, got)
	name, mine := cutVersion(want)
	other, version := cutVersion(got)
	if name != other || version <= mine {
		return e
	}
	e = Errorf(Invalid, "format: want %q, got %.60q, which a later version of dflash-runner wrote", want, got)
	return e.WithHint("read it with the version that wrote it, or a later one; nothing of it was changed")
}

// cutVersion splits "name/version"; the version is -1 where there is none.
func cutVersion(format string) (name string, version int) {
	i := strings.LastIndexByte(format, '/')
	if i < 0 {
		return format, -1
	}
	n, err := strconv.Atoi(format[i+1:])
	if err != nil || n < 0 {
		return format, -1
	}
	return format[:i], n
}
