package rows

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// file writes an index file: what a test changes is its fields.
type file struct {
	offset                              []int64
	tokens, supervised, anchors, source []int32
	meta                                map[string]string
	header                              func(map[string]any) // changes the header before it is written
	tail                                string
}

func twoSamples() file {
	return file{
		offset: []int64{0, 10}, tokens: []int32{10, 4}, supervised: []int32{8, 1}, anchors: []int32{5, 0}, source: []int32{0, 1},
		meta: map[string]string{
			"format": IndexFormat, "sources": `["a.jsonl","b.py"]`, "data_sha256": strings.Repeat("ab", 32),
			"data_bytes": "1234", "tokenizer_sha256": strings.Repeat("cd", 32), "skipped": `[{"source":"a.txt","line":1,"reason":"too short"},{"source":"a.txt","line":9,"reason":"too short"}]`,
		},
	}
}

func (f file) bytes() []byte {
	var data []byte
	at := func(n int) map[string]any {
		return map[string]any{"shape": []int{n}, "data_offsets": []int{len(data), 0}}
	}
	head := map[string]any{"__metadata__": f.meta}
	add := func(name, dtype string, n int, put func()) {
		e := at(n)
		e["dtype"] = dtype
		put()
		e["data_offsets"].([]int)[1] = len(data)
		head[name] = e
	}
	add("offset", "I64", len(f.offset), func() {
		for _, v := range f.offset {
			data = binary.LittleEndian.AppendUint64(data, uint64(v))
		}
	})
	for name, c := range map[string][]int32{"tokens": f.tokens, "supervised": f.supervised, "anchors": f.anchors, "source": f.source} {
		add(name, "I32", len(c), func() {
			for _, v := range c {
				data = binary.LittleEndian.AppendUint32(data, uint32(v))
			}
		})
	}
	if f.header != nil {
		f.header(head)
	}
	h, err := json.Marshal(head)
	if err != nil {
		panic(err)
	}
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...), append(data, f.tail...)...)
}

func TestParseIndex(t *testing.T) {
	ix, err := ParseIndex("index.safetensors", twoSamples().bytes())
	if err != nil {
		t.Fatal(err)
	}
	want := []SampleInfo{{10, 8, 5, 0}, {4, 1, 0, 1}}
	if !slices.Equal(ix.Samples, want) || !slices.Equal(ix.Sources, []string{"a.jsonl", "b.py"}) {
		t.Errorf("got %v %q", ix.Samples, ix.Sources)
	}
	if ix.DataBytes != 1234 || ix.Data[0] != 0xab || ix.Tokenizer[31] != 0xcd || ix.Skipped["too short"] != 2 || ix.Digest == (runner.Digest{}) {
		t.Errorf("got %+v", ix)
	}
}

func TestParseIndexRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*file)
		want string // part of the message: the field
	}{
		{"another format", func(f *file) { f.meta["format"] = "dflash-runner-index/2" }, "__metadata__.format"},
		{"no metadata", func(f *file) { f.meta = nil }, "__metadata__.format"},
		{"sources no list", func(f *file) { f.meta["sources"] = "a" }, "__metadata__.sources"},
		{"short digest", func(f *file) { f.meta["data_sha256"] = "ab" }, "__metadata__.data_sha256"},
		{"negative size", func(f *file) { f.meta["data_bytes"] = "-1" }, "__metadata__.data_bytes"},
		{"skipped no list", func(f *file) { f.meta["skipped"] = "3" }, "__metadata__.skipped"},
		{"sample without tokens", func(f *file) { f.tokens[1] = 0 }, "tokens[1]"},
		{"overlap", func(f *file) { f.offset[1] = 9 }, "offset[1]"},
		{"offset past the end", func(f *file) { f.offset[1] = 1<<63 - 1 }, "offset[1]"},
		{"more supervised than tokens", func(f *file) { f.supervised[0] = 11 }, "supervised[0]"},
		{"as many anchors as supervised", func(f *file) { f.anchors[0] = 8 }, "anchors[0]"},
		{"negative anchors", func(f *file) { f.anchors[1] = -1 }, "anchors[1]"},
		{"unknown source", func(f *file) { f.source[0] = 2 }, "source[0]"},
		{"a column shorter", func(f *file) { f.anchors = f.anchors[:1] }, "anchors.shape"},
		{"a column missing", func(f *file) { f.header = func(h map[string]any) { delete(h, "source") } }, "source: not there"},
		{"a column of another type", func(f *file) {
			f.header = func(h map[string]any) { h["tokens"].(map[string]any)["dtype"] = "I64" }
		}, "tokens.dtype"},
		{"offsets past the data", func(f *file) {
			f.header = func(h map[string]any) { h["offset"].(map[string]any)["data_offsets"] = []int{1 << 30, 1<<30 + 16} }
		}, "offset.data_offsets"},
		{"two columns on the same bytes", func(f *file) {
			f.header = func(h map[string]any) {
				h["tokens"].(map[string]any)["data_offsets"] = h["anchors"].(map[string]any)["data_offsets"]
			}
		}, "data_offsets: want tensors one after another"},
		{"one tensor more", func(f *file) {
			f.header = func(h map[string]any) { h["x"] = h["tokens"] }
		}, "header: want 5 tensors"},
		{"bytes after the data", func(f *file) { f.tail = "x" }, "data: want 48 bytes, got 49"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := twoSamples()
			c.edit(&f)
			ix, err := ParseIndex("d/index.safetensors", f.bytes())
			if err == nil || ix != nil || runner.KindOf(err) != runner.Invalid || runner.HintOf(err) == "" {
				t.Fatalf("got %v, %v, hint %q", ix, err, runner.HintOf(err))
			}
			if !strings.Contains(err.Error(), "d/index.safetensors: "+c.want) {
				t.Errorf("got %q, want the file and %q named", err, c.want)
			}
		})
	}
}

func TestParseIndexRefusesHeader(t *testing.T) {
	for _, head := range []string{`[]`, `{"a":1,"a":2}`, `{"offset":{"dtype":"I64"}} {}`, `{`, `{"x":{"dtype":"I32","shape":[1],"data_offsets":[0,4],"more":1}}`} {
		b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
		if _, err := ParseIndex("i", b); err == nil || !strings.Contains(err.Error(), "header") {
			t.Errorf("%s: got %v", head, err)
		}
	}
	for n := range 20 { // cut anywhere, also inside the length
		if _, err := ParseIndex("i", twoSamples().bytes()[:n]); err == nil {
			t.Errorf("cut at %d: read", n)
		}
	}
}

func FuzzParseIndex(f *testing.F) {
	f.Add(twoSamples().bytes())
	empty := twoSamples()
	empty.offset, empty.tokens, empty.supervised, empty.anchors, empty.source = nil, nil, nil, nil, nil
	f.Add(empty.bytes())
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ix, err := ParseIndex("f", b)
		if (ix == nil) == (err == nil) {
			t.Fatalf("got %v and %v", ix, err)
		}
		if err != nil {
			if runner.KindOf(err) != runner.Invalid {
				t.Fatalf("kind %v of %v", runner.KindOf(err), err)
			}
			return
		}
		for i, s := range ix.Samples {
			if s.Tokens == 0 || s.Supervised > s.Tokens || s.Anchors > 0 && s.Anchors >= s.Supervised || int(s.Source) >= len(ix.Sources) {
				t.Fatalf("sample %d: %s", i, fmt.Sprint(s))
			}
		}
	})
}
