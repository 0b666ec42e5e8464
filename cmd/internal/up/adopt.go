package up

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

// A checkpoint is renamed before its record is appended, so a kill in between
// leaves one that the journal does not name. It is taken over where it is proved
// whole and of the surviving lineage; what is not goes once a later checkpoint
// is published.

// stray is a checkpoint that is not used, and why.
type stray struct{ name, why string }

// adopt sorts the checkpoints that lie under the run into those that its
// records name, those that they should name, and strays. best is what the file
// of that name says; verify proves one whole. It changes the resume.
func (h *history) adopt(all []image.Checkpoint, best string, verify func(path string) error) (strays []stray) {
	v := &h.resume
	known := map[string]runner.CheckpointRecord{}
	for _, r := range v.Checkpoints {
		known[r.Name] = r
	}
	for _, c := range all {
		r, named := known[c.Name]
		if named && (r.Best || c.Name != best) {
			continue
		}
		why := h.unfit(c)
		if why == "" {
			if err := verify(c.Path); err != nil {
				why = err.Error()
			}
		}
		switch {
		case why == "":
			v.Adopted = append(v.Adopted, recordOf(c, c.Name == best))
		case !named: // else it is opened, and judged, when it is wanted
			strays = append(strays, stray{c.Name, why})
			v.Strays = append(v.Strays, c.Name)
		}
	}
	return strays
}

// unfit says why a checkpoint is none of the surviving lineage, or nothing. Its
// commit is durable before it is published, so one of a step that the journal
// does not have was undone by a restore.
func (h *history) unfit(c image.Checkpoint) string {
	f, s := c.Facts, c.Facts.Step
	switch {
	case c.Err != nil:
		return c.Err.Error()
	case c.Name != image.Name(s) || s == 0:
		return fmt.Sprintf("it is of step %d, its name says another", s)
	case s > h.resume.Committed || int(s) > len(h.resume.Plans):
		return fmt.Sprintf("step %d is not committed; the last one that is, is %d", s, h.resume.Committed)
	case f.Lineage != h.lineages[s]:
		return fmt.Sprintf("it is of lineage %d; the surviving step %d is of lineage %d", f.Lineage, s, h.lineages[s])
	}
	if p := h.resume.Plans[s-1]; f.Chain != hex.EncodeToString(p.Chain[:]) {
		return fmt.Sprintf("its chain is %.12s, that of step %d is %.12x", f.Chain, s, p.Chain[:])
	}
	return ""
}

// recordOf is the record that a checkpoint lacks. Its facts were checked.
func recordOf(c image.Checkpoint, best bool) runner.CheckpointRecord {
	r := runner.CheckpointRecord{Step: c.Facts.Step, Name: c.Name, Best: best}
	for into, text := range map[*[32]byte]string{(*[32]byte)(&r.Image): c.Facts.Image, (*[32]byte)(&r.Chain): c.Facts.Chain} {
		if b, err := hex.DecodeString(text); err == nil {
			copy(into[:], b)
		}
	}
	return r
}

// adopt looks at the run's checkpoints for a resume and tells people of those
// that the journal does not name.
func (u *up) adopt(h *history, st *store) error {
	all, err := image.List(st.dir)
	if err != nil {
		return err
	}
	best, err := st.best()
	if err != nil {
		return err
	}
	for _, s := range h.adopt(all, best, func(path string) error { _, err := image.Verify(path); return err }) {
		u.observe(runner.Event{At: time.Now(), Level: runner.Warn, Name: "checkpoint not used", Message: s.name + ": " + s.why,
			Hint: "it is removed once a later one is published; copy it away to keep it"})
	}
	for _, r := range h.resume.Adopted {
		u.note("checkpoint adopted", r.Name+" was published just before its supervisor was killed: the journal did not name it")
	}
	return nil
}

// best reads which checkpoint is the best one, or "" where none was named.
func (s *store) best() (string, error) {
	text, err := os.ReadFile(s.path(bestFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", runner.Errorf(runner.Unavailable, "read which checkpoint is the best: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
