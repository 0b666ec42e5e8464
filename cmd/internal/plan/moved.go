package plan

import (
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// Moved gives the plan with its workers on other GPUs of the machine: the kind
// of arenas, what each device takes, its turns and the host's memory follow from
// that. Of kind exhausted where they do not fit there. On a CPU nothing moves.
func (p Plan) Moved(c *config.Config, m Machine, at map[runner.Worker]string) (Plan, error) {
	if p.Device == placement.CPU {
		return p, nil
	}
	q := p
	q.Workers, q.Devices, q.Turns = slices.Clone(p.Workers), []Device{}, Turns{}
	var placed []placement.Placed
	for i := range q.Workers {
		w := &q.Workers[i]
		device, ok := at[w.Name]
		if !ok {
			return p, runner.Errorf(runner.Invalid, "move workers: want a device for %s, got none", w.Name)
		}
		w.Device = device
		placed = append(placed, placement.Placed{Worker: w.Name, Device: device})
	}
	var err error
	if q.Arenas.Kind, q.Arenas.Reason, err = placement.ArenaKind(c.Arenas.Kind, true, placed, m.Links); err != nil {
		return p, err
	}
	q.arenasMoved(p.HostBytes)
	for _, w := range q.Workers {
		q.Turns[w.Device] = max(1, c.Workers.Turns)
	}
	for _, g := range m.GPUs {
		d := q.on(g)
		if d.Wanted > g.Bytes {
			return p, runner.Errorf(runner.Exhausted, "move workers: GPU %d (%s): want %d MiB, got %d MiB", g.Index, g.UUID, d.Wanted>>20, g.Bytes>>20)
		}
		if d.Wanted > 0 {
			q.Devices = append(q.Devices, d)
		}
	}
	if q.Fits = m.Available == 0 || q.MemoryBytes <= m.Available; !q.Fits {
		return p, runner.Errorf(runner.Exhausted, "move workers: want %d MiB of the host, have %d MiB", q.MemoryBytes>>20, m.Available>>20)
	}
	q.renote(p)
	return q, nil
}

// arenasMoved puts arenas where their kind has them, on targets' GPUs or on the
// host, of which before were taken.
func (p *Plan) arenasMoved(before uint64) {
	each := uint64(p.Arenas.Slots) * p.Arenas.SlotBytes
	on := uint64(0)
	if p.Arenas.Kind == runner.ArenaCUDA {
		each = placement.OnDevice(each)
		on = each
	}
	for i := range p.Workers {
		w := &p.Workers[i]
		if w.Name.Role == runner.Target {
			w.Memory.Slots = on
			w.MemoryBytes, w.AllocatedBytes = w.Memory.Total(), w.Memory.Allocated()
		}
	}
	p.Arenas.Bytes = each * uint64(p.Arenas.Count)
	onHost := p.Arenas.Bytes
	if on > 0 {
		onHost = 0
	}
	p.HostBytes = placement.HostBytes(onHost, imagesKept, p.ImageBytes)
	p.MemoryBytes += p.HostBytes - before
}

// renote replaces what was said of the devices before by what is to be said now.
func (p *Plan) renote(old Plan) {
	was := old
	was.Notes = nil
	was.note()
	p.Notes = slices.DeleteFunc(slices.Clone(old.Notes), func(n string) bool { return slices.Contains(was.Notes, n) })
	p.note()
}
