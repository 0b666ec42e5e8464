package up

import (
	"maps"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// spares gives the GPUs on which a worker of each role may be started in place
// of its own, and the turns of every device that may be used. They have room for
// it, are of the kind that kernels are compiled for, and reach every arena. A
// target whose arena lies on its own GPU is not moved away from it.
func (u *up) spares() (by map[runner.Role][]string, turns map[string]int) {
	turns = maps.Clone(u.plan.Turns)
	if u.config.Workers.Device == placement.CPU {
		return nil, turns
	}
	by = map[runner.Role][]string{}
	names, _ := u.used()
	for _, g := range u.has.GPUs {
		if g.Busy != "" || !slices.Contains(names, g.Name) {
			continue
		}
		for _, role := range []runner.Role{runner.Target, runner.Drafter} {
			if u.takes(g, role) {
				by[role] = append(by[role], g.UUID)
				turns[g.UUID] = max(1, u.config.Workers.Turns)
			}
		}
	}
	return by, turns
}

// takes reports whether any worker of a role could run on a GPU.
func (u *up) takes(g placement.GPU, role runner.Role) bool {
	onGPU := u.plan.Arenas.Kind == runner.ArenaCUDA
	if onGPU && role == runner.Target {
		return false
	}
	for _, w := range u.plan.Workers {
		switch {
		case w.Name.Role == role && w.MemoryBytes > g.Bytes:
			return false
		case onGPU && w.Name.Role == runner.Target && w.Device != g.UUID && !u.peers(g.UUID, w.Device):
			return false
		}
	}
	return true
}

// watched gives the GPUs that the probe looks at: those that workers run on, or
// may be started on.
func (u *up) watched() []placement.GPU {
	var all []placement.GPU
	for _, d := range u.plan.Devices {
		all = append(all, placement.GPU{UUID: d.UUID, Index: d.Index, Name: d.Name})
	}
	if u.plugin == nil || !u.plugin.Can(scheduler.OnFailure) {
		return all
	}
	by, _ := u.spares()
	for _, g := range u.has.GPUs {
		spare := slices.Contains(by[runner.Target], g.UUID) || slices.Contains(by[runner.Drafter], g.UUID)
		if spare && !slices.ContainsFunc(all, func(o placement.GPU) bool { return o.UUID == g.UUID }) {
			all = append(all, g)
		}
	}
	return all
}

// devicesNow tells of GPUs as the probe saw them last. From any goroutine.
func (u *up) devicesNow(uuids []string) (out []scheduler.Device) {
	u.mu.Lock()
	watch := u.watch
	u.mu.Unlock()
	var seen []admin.DeviceStatus
	if watch != nil {
		seen = watch.Devices(time.Now())
	}
	for _, d := range u.devices() {
		if !slices.Contains(uuids, d.ID) {
			continue
		}
		is := deviceIn(seen, d.ID)
		d.Health = string(is.Status)
		if is.MemoryUsedBytes != nil && is.MemoryTotalBytes != nil {
			d.FreeBytes = *is.MemoryTotalBytes - min(*is.MemoryUsedBytes, *is.MemoryTotalBytes)
		}
		out = append(out, d)
	}
	return out
}
