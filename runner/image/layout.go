package image

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"
	"strconv"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Format is what an image's metadata names.
const Format = "dflash-runner-image/1"

// maxHeader bounds the safetensors header, in bytes.
const maxHeader = 16 << 20

// Header is what an image says of itself.
type Header struct {
	Step       runner.Step
	Chain      runner.Chain
	Parameters runner.Digest
	Tensors    int
	Bytes      uint64 // of the whole file
}

type entry struct {
	DType   string    `json:"dtype"`
	Shape   []uint64  `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"`
}

var widths = map[string]uint64{"F32": 4, "F64": 8, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}

// ReadHeader reads and checks the header of an image: that it is a whole
// safetensors file of size bytes whose tensors lie end to end, and that its
// metadata is an image's. Every error names the file and the field.
func ReadHeader(f *os.File, size uint64) (Header, error) {
	h, err := readHeader(io.NewSectionReader(f, 0, int64(size)), size)
	if err != nil {
		return h, runner.Errorf(runner.Invalid, "read image %s: %w", f.Name(), err)
	}
	return h, nil
}

func readHeader(r io.Reader, size uint64) (h Header, err error) {
	var length [8]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return h, fmt.Errorf("header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || n+8 > size {
		return h, fmt.Errorf("header length: want at most %d, got %d in a file of %d bytes", maxHeader, n, size)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	if h, err = readMetadata(raw["__metadata__"]); err != nil {
		return h, err
	}
	delete(raw, "__metadata__")
	h.Tensors, h.Bytes = len(raw), size
	return h, checkEntries(raw, size-8-n)
}

func readMetadata(raw json.RawMessage) (h Header, err error) {
	var m map[string]string
	if err := json.Unmarshal(raw, &m); err != nil {
		return h, fmt.Errorf("__metadata__: want strings: %w", err)
	}
	if m["format"] != Format {
		return h, fmt.Errorf("__metadata__.%w", runner.WrongFormat(Format, m["format"]))
	}
	step, err := strconv.ParseUint(m["step"], 10, 63)
	if err != nil {
		return h, fmt.Errorf("__metadata__.step: want a number, got %q", m["step"])
	}
	h.Step = runner.Step(step)
	for name, into := range map[string][]byte{"chain": h.Chain[:], "parameters": h.Parameters[:]} {
		b, err := hex.DecodeString(m[name])
		if err != nil || len(b) != len(into) {
			return h, fmt.Errorf("__metadata__.%s: want %d bytes in hex, got %q", name, len(into), m[name])
		}
		copy(into, b)
	}
	return h, nil
}

// checkEntries proves that tensors fill the data end to end, without a gap.
func checkEntries(raw map[string]json.RawMessage, data uint64) error {
	all := make([]entry, 0, len(raw))
	for name, text := range raw {
		var e entry
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			return fmt.Errorf("tensor %s: %w", name, err)
		}
		want, ok := widths[e.DType]
		if !ok {
			return fmt.Errorf("tensor %s: dtype: got %q, which no image holds", name, e.DType)
		}
		for _, n := range e.Shape {
			over, product := bits.Mul64(want, n)
			if over != 0 {
				return fmt.Errorf("tensor %s: shape %d is too large", name, e.Shape)
			}
			want = product
		}
		if e.Offsets[1] < e.Offsets[0] || e.Offsets[1]-e.Offsets[0] != want {
			return fmt.Errorf("tensor %s: data_offsets: want %d bytes for %s%d, got %d", name, want, e.DType, e.Shape, e.Offsets)
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.Offsets[0], b.Offsets[0]), cmp.Compare(a.Offsets[1], b.Offsets[1]))
	})
	at := uint64(0)
	for _, e := range all {
		if e.Offsets[0] != at {
			return fmt.Errorf("data_offsets: want a tensor at %d, got one at %d", at, e.Offsets[0])
		}
		at = e.Offsets[1]
	}
	if at != data {
		return fmt.Errorf("data: want %d bytes, got %d", at, data)
	}
	return nil
}
