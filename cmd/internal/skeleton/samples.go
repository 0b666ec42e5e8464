package skeleton

import (
	"encoding/json"
	"io/fs"
	"regexp"
	"strings"

	"github.com/dflash-runner/dflash-runner/configs"
	"github.com/dflash-runner/dflash-runner/python"
	"github.com/dflash-runner/dflash-runner/runner"
)

// What a plugin's first run is trained on: two sources, so that an order by
// source shows, and several lengths, so that an order by length does. A token of
// the embedded target is a byte.
const (
	trained = 32 // samples of each source
	heldout = 8  // more of each, never trained on
)

// lengths are the most bytes of samples, in turns; the longest fits the run's
// longest row.
var lengths = []int{24, 40, 64, 92}

// dataSection is what configs/cpu-test.yaml says of data, to be replaced.
var dataSection = regexp.MustCompile(`(?m)^data:\n(?:  .*\n)+`)

// ownData is what a plugin's first run says of it.
const ownData = `data:
  files: [data/code.jsonl, data/prose.jsonl]  # two sources, samples of some 20 to 92 tokens
  heldout_files: [data/heldout.jsonl]         # relative to the directory that the run is started in
  regenerate:
    samples: 0                        # the files as they are: answers of the target are all of one length
`

// samples gives the files of a first run, by name: text that this program
// carries, cut into pieces.
func samples() (map[string]string, error) {
	code, err := fs.ReadFile(python.Package, "dflash_runner/scheduler/requests.py")
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "make plugin: %w", err)
	}
	var prose strings.Builder // what stands in the embedded configuration beside its keys
	for line := range strings.Lines(string(configs.CPUTiny())) {
		if _, said, ok := strings.Cut(line, "#"); ok {
			prose.WriteString(strings.TrimSpace(said) + "; ")
		}
	}
	out := map[string]string{}
	for _, source := range [][2]string{{"code", string(code)}, {"prose", prose.String()}} {
		all := pieces(source[1], trained+heldout)
		if len(all) < trained+heldout {
			return nil, runner.Errorf(runner.Internal, "make plugin: %s: want %d samples, got text for %d", source[0], trained+heldout, len(all))
		}
		out["data/"+source[0]+".jsonl"] = lines(all[:trained])
		out["data/heldout.jsonl"] += lines(all[trained:])
	}
	return out, nil
}

// pieces cuts a text between words into at most n pieces of lengths in turns.
func pieces(text string, n int) (out []string) {
	words := strings.SplitAfter(strings.ToValidUTF8(text, ""), " ")
	for len(words) > 0 && len(out) < n {
		var b strings.Builder
		for len(words) > 0 && (b.Len() == 0 || b.Len()+len(words[0]) <= lengths[len(out)%len(lengths)]) {
			b.WriteString(words[0])
			words = words[1:]
		}
		if s := strings.TrimSpace(b.String()); len(s) >= lengths[0]/2 && len(s) <= lengths[len(lengths)-1] {
			out = append(out, s)
		}
	}
	return out
}

// lines writes samples as .jsonl.
func lines(all []string) string {
	var b strings.Builder
	for _, s := range all {
		text, err := json.Marshal(map[string]string{"text": s})
		if err != nil {
			panic("skeleton: " + err.Error()) // it is text
		}
		b.Write(append(text, '\n'))
	}
	return b.String()
}
