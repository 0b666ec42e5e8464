package worker

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// maxLine bounds one line of a worker's stdout or stderr, in bytes; what is
// longer is cut and said to be cut.
const maxLine = 60 << 10

// readLines calls f for every line of src until it ends or fails. A line
// longer than limit comes once, cut to limit with cut true, and its rest is
// dropped, so memory stays bounded whatever is written. The slice is only
// valid during the call.
func readLines(src io.Reader, limit int, f func(line []byte, cut bool)) {
	in := bufio.NewReaderSize(src, limit)
	skipping := false
	for {
		b, err := in.ReadSlice('\n')
		cut := errors.Is(err, bufio.ErrBufferFull)
		if !skipping && len(b) > 0 {
			f(bytes.TrimRight(b, "\r\n"), cut)
		}
		skipping = cut
		if err != nil && !cut {
			return
		}
	}
}

// clean makes s fit for people's terminals and for JSON: valid UTF-8, control
// characters but tab escaped, at most limit bytes.
func clean(s string, limit int) string {
	suffix := ""
	if len(s) > limit {
		suffix = fmt.Sprintf(" [cut, %d bytes]", len(s))
		s = s[:limit]
	}
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] == '\t' || s[i] >= 0x20 && s[i] < 0x7f
	}
	if plain {
		return s + suffix
	}
	var out strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1, r != '\t' && (r < 0x20 || r >= 0x7f && r < 0xa0):
			fmt.Fprintf(&out, `\x%02x`, s[0])
			if n > 1 { // a C1 control of two bytes
				fmt.Fprintf(&out, `\x%02x`, s[1])
			}
		default:
			out.WriteString(s[:n])
		}
		s = s[n:]
	}
	return out.String() + suffix
}
