package placement

import (
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Links says what keeps GPUs, by UUID, from reading one another's memory.
type Links struct {
	MIG    []string    // cut into instances, which read nobody's
	NoPeer [][2]string // pairs without peer access
}

// ArenaKind chooses the kind of all arenas of a run on placed workers: want is
// auto, or the kind that the configuration insists on. why is not empty where
// auto comes down to host memory although there are GPUs. A kind that cannot be
// is of kind unavailable.
func ArenaKind(want string, cuda bool, placed []Placed, l Links) (kind, why string, err error) {
	if want == runner.ArenaMemfd || !cuda && want == "auto" {
		return runner.ArenaMemfd, "", nil
	}
	if cuda {
		why = l.obstacle(placed)
	} else {
		why = "there is no GPU"
	}
	switch {
	case why == "":
		return runner.ArenaCUDA, "", nil
	case want == "auto":
		return runner.ArenaMemfd, why, nil
	}
	return "", "", runner.Errorf(runner.Unavailable, "choose arenas: want kind %s, but %s", want, why).
		WithHint("set arenas.kind to auto: rows then go through host memory, which is slower")
}

// Peer reports whether a GPU reads another's memory directly.
func (l Links) Peer(a, b string) bool {
	return !slices.Contains(l.MIG, a) && !slices.Contains(l.MIG, b) && !slices.Contains(l.NoPeer, [2]string{a, b}) && !slices.Contains(l.NoPeer, [2]string{b, a})
}

// obstacle says why a drafter could not read a target's memory, or nothing.
func (l Links) obstacle(placed []Placed) string {
	for _, p := range placed {
		if slices.Contains(l.MIG, p.Device) {
			return fmt.Sprintf("%s, of %s, is cut into MIG instances, which read no other memory", p.Device, p.Worker)
		}
	}
	for _, t := range placed {
		for _, d := range placed {
			if t.Worker.Role != runner.Target || d.Worker.Role != runner.Drafter || t.Device == d.Device {
				continue
			}
			if slices.Contains(l.NoPeer, [2]string{t.Device, d.Device}) || slices.Contains(l.NoPeer, [2]string{d.Device, t.Device}) {
				return fmt.Sprintf("%s, of %s, has no peer access to %s, of %s", d.Device, d.Worker, t.Device, t.Worker)
			}
		}
	}
	return ""
}
