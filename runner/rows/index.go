package rows

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"

	"github.com/dflash-runner/dflash-runner/runner"
)

// IndexFormat is what the index's metadata must name.
const IndexFormat = "dflash-runner-index/1"

// MaxIndexBytes bounds the index file: 24 bytes a sample.
const MaxIndexBytes = 4 << 30

// SampleInfo is what the index says of one sample.
type SampleInfo struct {
	Tokens     uint32
	Supervised uint32 // tokens that the loss mask keeps
	Anchors    uint32 // places t with t and t+1 both supervised
	Source     uint16 // index into Index.Sources
}

// Index is the data index that `prepare` wrote.
type Index struct {
	Samples   []SampleInfo
	Sources   []string
	Digest    runner.Digest // of the index file
	Data      runner.Digest // of the data file
	DataBytes uint64
	Tokenizer runner.Digest
	Skipped   map[string]uint64 // what prepare left out: reason to count
}

// ParseIndex reads an index file's bytes. name is the file's, for errors. The
// bytes come from outside: every length, type and value is checked, and an
// error names the file and the field.
func ParseIndex(name string, b []byte) (*Index, error) {
	p := indexParser{name: name}
	head, data, err := p.split(b)
	if err != nil {
		return nil, err
	}
	ix := &Index{Digest: sha256.Sum256(b)}
	if err := p.metadata(ix, head.Meta); err != nil {
		return nil, err
	}
	columns, n, err := p.columns(head.Tensors, data)
	if err != nil {
		return nil, err
	}
	if err := p.samples(ix, columns, n); err != nil {
		return nil, err
	}
	return ix, nil
}

// indexParser names the file in every error.
type indexParser struct{ name string }

func (p indexParser) errorf(format string, a ...any) *runner.Error {
	e := runner.Errorf(runner.Invalid, format, a...)
	e.Msg = "read index " + p.name + ": " + e.Msg
	return e.WithHint("run `dflash-runner prepare` again to write the data and its index anew")
}

// metadata fills in everything that the header's __metadata__ says.
func (p indexParser) metadata(ix *Index, m map[string]string) error {
	if got := m["format"]; got != IndexFormat {
		e := p.errorf("__metadata__.%w", runner.WrongFormat(IndexFormat, got))
		if later := runner.HintOf(e.Err); later != "" {
			e.Hint = later
		}
		return e
	}
	if err := json.Unmarshal([]byte(m["sources"]), &ix.Sources); err != nil {
		return p.errorf("__metadata__.sources: want a JSON list of strings: %w", err)
	}
	if len(ix.Sources) > math.MaxUint16 {
		return p.errorf("__metadata__.sources: want at most %d sources, got %d", math.MaxUint16, len(ix.Sources))
	}
	for field, to := range map[string]*runner.Digest{"data_sha256": &ix.Data, "tokenizer_sha256": &ix.Tokenizer} {
		d, err := hex.DecodeString(m[field])
		if err != nil || len(d) != len(to) {
			return p.errorf("__metadata__.%s: want 64 hexadecimal digits, got %.80q", field, m[field])
		}
		copy(to[:], d)
	}
	var err error
	if ix.DataBytes, err = strconv.ParseUint(m["data_bytes"], 10, 63); err != nil {
		return p.errorf("__metadata__.data_bytes: want a count of bytes, got %.40q", m["data_bytes"])
	}
	var skipped []struct {
		Source string `json:"source"`
		Line   int64  `json:"line"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal([]byte(m["skipped"]), &skipped); err != nil {
		return p.errorf("__metadata__.skipped: want a JSON list of source, line and reason: %w", err)
	}
	ix.Skipped = map[string]uint64{}
	for _, s := range skipped {
		ix.Skipped[s.Reason]++
	}
	return nil
}

// samples checks the columns against each other and fills in ix.Samples.
func (p indexParser) samples(ix *Index, c map[string][]byte, n int) error {
	ix.Samples = make([]SampleInfo, n)
	end := int64(0) // of the sample before, in tokens
	for i := range ix.Samples {
		offset := int64(binary.LittleEndian.Uint64(c["offset"][8*i:]))
		v := [4]int64{}
		for j, name := range [...]string{"tokens", "supervised", "anchors", "source"} {
			v[j] = int64(int32(binary.LittleEndian.Uint32(c[name][4*i:])))
		}
		switch {
		case offset < end:
			return p.errorf("offset[%d]: want at least %d, where the sample before ends, got %d", i, end, offset)
		case v[0] < 1:
			return p.errorf("tokens[%d]: want at least 1, got %d", i, v[0])
		case offset > math.MaxInt64-v[0]:
			return p.errorf("offset[%d]: got %d, out of range", i, offset)
		case v[1] < 0 || v[1] > v[0]:
			return p.errorf("supervised[%d]: want 0 to %d (its tokens), got %d", i, v[0], v[1])
		case v[2] < 0 || v[2] > max(0, v[1]-1):
			return p.errorf("anchors[%d]: want 0 to %d (one less than its supervised tokens), got %d", i, max(0, v[1]-1), v[2])
		case v[3] < 0 || v[3] >= int64(len(ix.Sources)):
			return p.errorf("source[%d]: want an index into %d sources, got %d", i, len(ix.Sources), v[3])
		}
		end = offset + v[0]
		ix.Samples[i] = SampleInfo{Tokens: uint32(v[0]), Supervised: uint32(v[1]), Anchors: uint32(v[2]), Source: uint16(v[3])}
	}
	return nil
}
