package rows

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strings"
)

// maxIndexHeader bounds the header of an index: five tensors and the names of
// its sources.
const maxIndexHeader = 16 << 20

// tensorInfo is one entry of a safetensors header.
type tensorInfo struct {
	DType   string   `json:"dtype"`
	Shape   []uint64 `json:"shape"`
	Offsets []uint64 `json:"data_offsets"`
}

// indexHeader is a safetensors header, taken apart.
type indexHeader struct {
	Meta    map[string]string
	Tensors map[string]tensorInfo
}

// The columns of an index and the size of their elements.
var indexColumns = [...]struct {
	name, dtype string
	size        uint64
}{{"offset", "I64", 8}, {"tokens", "I32", 4}, {"supervised", "I32", 4}, {"anchors", "I32", 4}, {"source", "I32", 4}}

// split takes the file apart: 8 bytes of header length, the header, the data.
func (p indexParser) split(b []byte) (indexHeader, []byte, error) {
	h := indexHeader{Tensors: map[string]tensorInfo{}}
	if len(b) < 8 {
		return h, nil, p.errorf("header: want at least 8 bytes, got %d", len(b))
	}
	if len(b) > MaxIndexBytes {
		return h, nil, p.errorf("file: want at most %d bytes, got %d", int64(MaxIndexBytes), len(b))
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxIndexHeader || n > uint64(len(b)-8) {
		return h, nil, p.errorf("header: length %d, more than the file (%d bytes) or the limit (%d)", n, len(b), maxIndexHeader)
	}
	fields, err := p.object(b[8 : 8+n])
	if err != nil {
		return h, nil, err
	}
	for name, raw := range fields {
		if name == "__metadata__" {
			if err := json.Unmarshal(raw, &h.Meta); err != nil {
				return h, nil, p.errorf("__metadata__: want strings only: %w", err)
			}
			continue
		}
		var t tensorInfo
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&t); err != nil {
			return h, nil, p.errorf("header.%.40q: want dtype, shape and data_offsets: %w", name, err)
		}
		h.Tensors[name] = t
	}
	return h, b[8+n:], nil
}

// object reads one JSON object and refuses a key given twice, which
// encoding/json would let the later one win.
func (p indexParser) object(b []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, p.errorf("header: want a JSON object")
	}
	fields := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, p.errorf("header: %w", err)
		}
		key, ok := t.(string)
		if !ok {
			return nil, p.errorf("header: want a key, got %v", t)
		}
		if _, twice := fields[key]; twice {
			return nil, p.errorf("header.%.40q: given twice", key)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, p.errorf("header.%.40q: %w", key, err)
		}
		fields[key] = raw
	}
	if _, err := d.Token(); err != nil {
		return nil, p.errorf("header: %w", err)
	}
	if rest, _ := io.ReadAll(d.Buffered()); strings.TrimSpace(string(rest)) != "" {
		return nil, p.errorf("header: more than one JSON object")
	}
	return fields, nil
}

// columns finds each column's bytes. They must cover the data without a gap
// and all have the same length n.
func (p indexParser) columns(ts map[string]tensorInfo, data []byte) (map[string][]byte, int, error) {
	out, n := map[string][]byte{}, uint64(0)
	spans := make([][2]uint64, 0, len(indexColumns))
	for i, c := range indexColumns {
		t, ok := ts[c.name]
		switch {
		case !ok:
			return nil, 0, p.errorf("%s: not there", c.name)
		case t.DType != c.dtype:
			return nil, 0, p.errorf("%s.dtype: want %s, got %.20q", c.name, c.dtype, t.DType)
		case len(t.Shape) != 1 || t.Shape[0] > math.MaxUint32:
			return nil, 0, p.errorf("%s.shape: want one dimension below 2^32, got %d dimensions", c.name, len(t.Shape))
		case i > 0 && t.Shape[0] != n:
			return nil, 0, p.errorf("%s.shape: want [%d] like offset, got %d", c.name, n, t.Shape)
		case len(t.Offsets) != 2 || t.Offsets[0] > t.Offsets[1] || t.Offsets[1] > uint64(len(data)) || t.Offsets[1]-t.Offsets[0] != t.Shape[0]*c.size:
			return nil, 0, p.errorf("%s.data_offsets: want %d of the file's %d data bytes, got %d", c.name, t.Shape[0]*c.size, len(data), t.Offsets)
		}
		n = t.Shape[0]
		out[c.name] = data[t.Offsets[0]:t.Offsets[1]]
		spans = append(spans, [2]uint64{t.Offsets[0], t.Offsets[1]})
	}
	if len(ts) != len(indexColumns) {
		return nil, 0, p.errorf("header: want %d tensors, got %d", len(indexColumns), len(ts))
	}
	slices.SortFunc(spans, func(a, b [2]uint64) int { return slices.Compare(a[:], b[:]) })
	end := uint64(0)
	for _, s := range spans {
		if s[0] != end {
			return nil, 0, p.errorf("data_offsets: want tensors one after another, got a gap or overlap at byte %d", end)
		}
		end = s[1]
	}
	if end != uint64(len(data)) {
		return nil, 0, p.errorf("data: want %d bytes, got %d", end, len(data))
	}
	return out, int(n), nil
}
