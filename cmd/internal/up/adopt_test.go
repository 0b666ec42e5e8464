package up

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

// publishAt publishes a real, small image of a step under dir.
func publishAt(t *testing.T, dir string, step runner.Step, lineage runner.Lineage, chain runner.Chain) runner.Digest {
	t.Helper()
	parameters := hex.EncodeToString(make([]byte, 32))
	text, err := json.Marshal(map[string]any{
		"__metadata__": map[string]string{"format": image.Format, "step": fmt.Sprint(step), "chain": hex.EncodeToString(chain[:]), "parameters": parameters},
		"masters.a":    map[string]any{"dtype": "U8", "shape": []int{8}, "data_offsets": []int{0, 8}}})
	if err != nil {
		t.Fatal(err)
	}
	b := slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, bytes.Repeat([]byte{byte(step)}, 8))
	im, err := image.Make(step, uint64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	if _, err := im.File().WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	d, err := image.Digest(im.ReadOnlyFile(), im.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := image.Publish(dir, im.ReadOnlyFile(), image.Facts{Step: step, Lineage: lineage, Chain: hex.EncodeToString(chain[:]),
		Image: hex.EncodeToString(d[:]), Parameters: parameters, Bytes: im.Bytes(), Written: "2026-01-02T03:04:05Z"}, image.Disk{}); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestAdopt: which checkpoints that the journal does not name are taken over.
// records() has steps 1 to 3 committed, and step-2 named.
func TestAdopt(t *testing.T) {
	history := func() *history {
		h := newHistory()
		for _, r := range records() {
			h.take(r)
		}
		h.end(func(c runner.CheckpointRecord) bool { return c.Name == "step-2" })
		return h
	}
	chain := func(n runner.Step) runner.Chain { return history().resume.Plans[n-1].Chain }
	lineage := history().lineages[3]
	for _, c := range []struct {
		name  string
		make  func(dir string)
		best  string
		takes string // adopted names
		stray string // part of why the only other one is not
	}{
		{"nothing more", func(string) {}, "", "", ""},
		{"whole and committed", func(dir string) { publishAt(t, dir, 3, lineage, chain(3)) }, "", "step-3", ""},
		{"the best", func(dir string) { publishAt(t, dir, 3, lineage, chain(3)) }, "step-3", "step-3*", ""},
		{"a name for the best that the journal lacks", func(string) {}, "step-2", "step-2*", ""},
		{"of a step that is undone", func(dir string) { publishAt(t, dir, 4, lineage, chain(3)) }, "", "", "step 4 is not committed"},
		{"of a lineage that is undone", func(dir string) { publishAt(t, dir, 3, lineage+1, chain(3)) }, "", "", "it is of lineage"},
		{"of other plans", func(dir string) { publishAt(t, dir, 3, lineage, chain(2)) }, "", "", "its chain is"},
		{"damaged", func(dir string) {
			publishAt(t, dir, 3, lineage, chain(3))
			if err := os.Truncate(filepath.Join(dir, "step-3", image.ImageFile), 100); err != nil {
				t.Fatal(err)
			}
		}, "", "", "want digest"},
		{"without facts", func(dir string) {
			publishAt(t, dir, 3, lineage, chain(3))
			if err := os.Remove(filepath.Join(dir, "step-3", image.FactsFile)); err != nil {
				t.Fatal(err)
			}
		}, "", "", "no such file"},
		{"under another name", func(dir string) {
			publishAt(t, dir, 3, lineage, chain(3))
			if err := os.Rename(filepath.Join(dir, "step-3"), filepath.Join(dir, "step-1")); err != nil {
				t.Fatal(err)
			}
		}, "", "", "its name says another"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, dir := history(), t.TempDir()
			publishAt(t, dir, 2, h.lineages[2], chain(2))
			c.make(dir)
			all, err := image.List(dir)
			if err != nil {
				t.Fatal(err)
			}
			strays := h.adopt(all, c.best, func(path string) error { _, err := image.Verify(path); return err })
			takes := ""
			for _, r := range h.resume.Adopted {
				takes += r.Name
				if r.Best {
					takes += "*"
				}
				if f, err := image.ReadFacts(filepath.Join(dir, r.Name)); err != nil || f.Image != hex.EncodeToString(r.Image[:]) || f.Chain != hex.EncodeToString(r.Chain[:]) || f.Step != r.Step {
					t.Errorf("the record %+v does not say what lies there: %+v, %v", r, f, err)
				}
			}
			if takes != c.takes {
				t.Errorf("adopted %q, want %q", takes, c.takes)
			}
			if (c.stray == "") != (len(strays) == 0) || len(strays) != len(h.resume.Strays) || len(strays) > 0 && !strings.Contains(strays[0].why, c.stray) {
				t.Errorf("strays %+v, want one for %q", strays, c.stray)
			}
		})
	}
}
