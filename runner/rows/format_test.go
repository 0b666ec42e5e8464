package rows

import (
	"os"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestFormat1 reads an index of version 1, kept as it was written. It is never
// written anew: a later version must still read it.
func TestFormat1(t *testing.T) {
	b, err := os.ReadFile("testdata/format1/index.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	ix, err := ParseIndex("index", b)
	if err != nil {
		t.Fatal(err)
	}
	want := []SampleInfo{{Tokens: 5, Supervised: 4, Anchors: 3, Source: 0}, {Tokens: 3, Supervised: 0, Anchors: 0, Source: 1}, {Tokens: 4, Supervised: 3, Anchors: 1, Source: 1}}
	if len(ix.Samples) != len(want) || len(ix.Sources) != 2 || ix.DataBytes != 196 || ix.Skipped["empty"] != 1 {
		t.Fatalf("got %+v", ix)
	}
	for i, s := range ix.Samples {
		if s != want[i] {
			t.Errorf("sample %d: got %+v, want %+v", i, s, want[i])
		}
	}
	later := strings.Replace(string(b), "dflash-runner-index/1", "dflash-runner-index/2", 1)
	_, err = ParseIndex("index", []byte(later))
	if runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), `got "dflash-runner-index/2", which a later version`) || !strings.Contains(runner.HintOf(err), "with the version that wrote it") {
		t.Errorf("a later version: got %v, hint %q", err, runner.HintOf(err))
	}
}
