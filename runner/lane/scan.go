package lane

import "github.com/dflash-runner/dflash-runner/runner"

// maxDepth is how deep containers may nest; the schema needs five.
const maxDepth = 8

// Scan walks a frame's structure without allocating and refuses whatever could
// make a decoder work more than the frame is long: lengths beyond the bytes
// left, deep nesting, extension types, keys that are not strings, bytes after
// the end. It also refuses what no frame of the schema holds: nil and float32.
//
// The decoder must not see a frame before this did: the five bytes
// dd ff ff ff ff end the process in it, past any recover.
func Scan(b []byte) error {
	if len(b) == 0 || len(b) > MaxFrame {
		return runner.Errorf(runner.Invalid, "scan frame: want 1 to %d bytes, got %d", MaxFrame, len(b))
	}
	s := scanner{b: b}
	why := s.item(0)
	if why == "" && s.at < len(b) {
		why = "bytes after the end"
	}
	if why != "" {
		return runner.Errorf(runner.Invalid, "scan frame: %s at byte %d of %d", why, s.at, len(b))
	}
	return nil
}

// scanner is at byte at. Every item that a container announces is walked and
// takes at least a byte, so what passes announces no more than it holds, and
// all decoded containers together stay within a constant factor of the frame.
type scanner struct {
	b  []byte
	at int
}

// item walks one value under depth open containers; it returns what is wrong, or "".
func (s *scanner) item(depth int) string {
	if s.at >= len(s.b) {
		return "frame cut short"
	}
	c := s.b[s.at]
	s.at++
	switch {
	case c <= 0x7f, c >= 0xe0, c == 0xc2, c == 0xc3: // small integers, booleans
		return ""
	case c <= 0x8f:
		return s.pairs(int(c&0x0f), depth)
	case c <= 0x9f:
		return s.items(int(c&0x0f), depth)
	case c <= 0xbf:
		return s.skip(int(c & 0x1f))
	case c >= 0xc4 && c <= 0xc6: // bin
		return s.skip(s.length(1 << (c - 0xc4)))
	case c == 0xcb: // float64
		return s.skip(8)
	case c >= 0xcc && c <= 0xcf: // unsigned integers
		return s.skip(1 << (c - 0xcc))
	case c >= 0xd0 && c <= 0xd3: // signed integers
		return s.skip(1 << (c - 0xd0))
	case c >= 0xd9 && c <= 0xdb: // str
		return s.skip(s.length(1 << (c - 0xd9)))
	case c == 0xdc, c == 0xdd:
		return s.items(s.length(2<<(c-0xdc)), depth)
	case c == 0xde, c == 0xdf:
		return s.pairs(s.length(2<<(c-0xde)), depth)
	}
	return "a type that no frame holds"
}

// length reads a big-endian length of width bytes; a cut one is larger than any frame.
func (s *scanner) length(width int) int {
	if width > len(s.b)-s.at {
		return MaxFrame + 1
	}
	n := 0
	for range width {
		n = n<<8 | int(s.b[s.at])
		s.at++
	}
	return min(n, MaxFrame+1)
}

func (s *scanner) skip(n int) string {
	if n > len(s.b)-s.at {
		return "a length beyond the frame's end"
	}
	s.at += n
	return ""
}

func (s *scanner) items(n, depth int) string {
	if depth == maxDepth {
		return "nesting too deep"
	}
	for range n {
		if why := s.item(depth + 1); why != "" {
			return why
		}
	}
	return ""
}

func (s *scanner) pairs(n, depth int) string {
	if depth == maxDepth {
		return "nesting too deep"
	}
	for range n {
		if s.at < len(s.b) && !isString(s.b[s.at]) {
			return "a key that is not a string"
		}
		if why := s.item(depth + 1); why != "" {
			return why
		}
		if why := s.item(depth + 1); why != "" {
			return why
		}
	}
	return ""
}

func isString(c byte) bool { return c >= 0xa0 && c <= 0xbf || c >= 0xd9 && c <= 0xdb }
