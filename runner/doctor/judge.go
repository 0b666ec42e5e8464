package doctor

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

const (
	minRunBytes   = 1 << 30
	lowRunBytes   = 10 << 30
	lowCacheBytes = 2 << 30
	envBytes      = 8 << 30 // what making the environment takes
	minAvailable  = 1 << 30
	lowAvailable  = 4 << 30
	lowShm        = 64 << 20
	lowMemlock    = 1 << 30
	minFiles      = 256
	lowFiles      = 1024
	minDriver     = 580 // the first that runs CUDA 13, which the locked torch is built for
	maxRuntime    = 60  // bytes, so that a run's directory (8 more) and socket paths below it stay under 108
	// No machine's clock is right that says less: the first release came later.
	firstYear = 2026
)

func system(r Readings) Check {
	c := Check{Name: "system", Status: OK, Detail: fmt.Sprintf("%s %s, kernel %s", r.OS, r.Arch, r.Kernel)}
	switch {
	case r.OS != "linux" || r.Arch != "amd64" && r.Arch != "arm64":
		c.Status, c.Hint = Fail, "use a 64-bit Linux machine (amd64 or arm64)"
	case r.MemfdErr != nil:
		c.Status, c.Detail = Fail, c.Detail+fmt.Sprintf("; sealed memory files do not work: %v", r.MemfdErr)
		c.Hint = "memfd_create with seals is needed: use a kernel of 4.14 or newer, and a sandbox that allows the call"
	}
	return c
}

func python(p PythonReading) Check {
	c := Check{Name: "python", Status: OK, Detail: fmt.Sprintf("%s (%s)", p.Python, p.Path)}
	switch {
	case p.Err != nil:
		c.Status, c.Detail, c.Hint = Fail, p.Err.Error(), p.Hint
	case p.Problem == "absent":
		c.Status, c.Detail = Warn, fmt.Sprintf("no environment yet; it would be made from %s (%s) in %s", p.Python, p.Path, p.Dir)
		c.Hint = "`dflash-runner up` makes it, which needs a package index and some minutes"
	case p.Problem != "":
		c.Status, c.Detail = Warn, fmt.Sprintf("%s is %s", p.Dir, p.Problem)
		c.Hint = "the next `dflash-runner up` makes it anew"
	}
	return c
}

// packages compares the versions that matter with those that were tested.
func packages(p PythonReading) Check {
	c := Check{Name: "packages", Status: OK}
	var have, other []string
	for _, name := range []string{"torch", "transformers", "grpcio", "safetensors"} {
		got, ok := p.Packages[name]
		if !ok {
			continue
		}
		have = append(have, name+" "+got)
		if want := p.Wanted[name]; want != "" && series(got) != series(want) {
			other = append(other, fmt.Sprintf("%s %s", name, want))
		}
	}
	switch c.Detail = strings.Join(have, ", "); {
	case len(have) == 0:
		c.Status, c.Detail = Warn, "none installed yet"
		c.Hint = "see python"
	case len(other) > 0:
		c.Status, c.Hint = Warn, "tested with "+strings.Join(other, ", ")
	}
	return c
}

// series gives "2.11" of "2.11.0+cu130".
func series(version string) string {
	v, _, _ := strings.Cut(version, "+")
	parts := strings.SplitN(v, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func devices(r Readings, n Needs) Check {
	c := Check{Name: "devices", Status: OK}
	switch {
	case r.GPUErr != nil:
		c.Status, c.Detail = Warn, "nvidia-smi: "+r.GPUErr.Error()
		c.Hint = "look at the NVIDIA driver (dmesg, nvidia-smi); workers on the CPU are not affected"
	case len(r.GPUs) == 0:
		c.Detail = "no GPU; CPU only"
	default:
		c.Detail = gpuText(r.GPUs)
		for _, g := range r.GPUs {
			if major, err := strconv.Atoi(strings.SplitN(g.Driver, ".", 2)[0]); err == nil && major < minDriver {
				c.Status, c.Hint = Warn, fmt.Sprintf("the driver is older than %d: torch will not see the GPU; install a newer one", minDriver)
			} else if g.MIG && c.Status == OK {
				c.Status, c.Hint = Warn, "with MIG, a GPU is not used: whole GPUs are"
			}
		}
	}
	if n.GPU && (c.Status == Warn && c.Hint != "" && !strings.HasPrefix(c.Hint, "with MIG") || len(r.GPUs) == 0) {
		c.Status = Fail
		if c.Hint == "" {
			c.Hint = "the configuration names a GPU: choose device cpu, or a machine that has one"
		}
	}
	return c
}

func gpuText(gpus []GPU) string {
	var out []string
	for _, g := range gpus {
		text := fmt.Sprintf("%d: %s, %s, driver %s", g.Index, g.Name, bytesText(g.MemoryBytes), g.Driver)
		if why := g.Found().InUse(); why != "" {
			text += ", where " + why
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// placed says where workers would run.
func placed(n Needs) Check {
	c := Check{Name: "placement", Status: OK, Detail: n.Placement}
	switch {
	case n.PlacementErr != nil:
		c.Status, c.Detail, c.Hint = Fail, n.PlacementErr.Error(), runner.HintOf(n.PlacementErr)
	case n.Placement == "":
		c.Detail = "nothing was asked for"
	}
	return c
}

// plugin says whether the files of the plugin that is used are as pinned.
func plugin(n Needs) Check {
	c := Check{Name: "plugin", Status: OK, Detail: n.Plugin + ": its files are as they were pinned"}
	if n.PluginErr != nil {
		c.Status, c.Detail, c.Hint = Warn, n.PluginErr.Error()+"; the built-in would decide alone", runner.HintOf(n.PluginErr)
		if n.PluginRequired {
			c.Status, c.Detail = Fail, n.PluginErr.Error()
		}
	}
	return c
}

func peers(r Readings) Check {
	c := Check{Name: "peer access", Status: OK}
	switch {
	case len(r.GPUs) < 2:
		c.Detail = "not needed: fewer than two GPUs"
	case len(r.NoPeer) > 0:
		c.Status, c.Detail = Warn, fmt.Sprintf("none between GPUs %v", r.NoPeer)
		c.Hint = "between these, hidden states go through host memory (memfd), which is slower"
	default:
		c.Detail = "between all GPUs"
	}
	return c
}

// arenas says in what memory rows would be handed over, and why.
func arenas(n Needs) Check {
	c := Check{Name: "arenas", Status: OK, Detail: n.ArenaKind}
	switch {
	case n.ArenaErr != nil:
		c.Status, c.Detail, c.Hint = Fail, n.ArenaErr.Error(), runner.HintOf(n.ArenaErr)
	case n.ArenaReason != "":
		c.Status, c.Detail = Warn, n.ArenaKind+", as "+n.ArenaReason
		c.Hint = "rows go through host memory, which is slower; arenas.kind: memfd says that this is meant"
	case n.ArenaKind == "":
		c.Detail = "chosen once there is a plan"
	}
	return c
}

func memory(m MemoryReading, n Needs) Check {
	c := Check{Name: "memory", Status: OK}
	if m.Err != nil {
		return Check{Name: c.Name, Status: Warn, Detail: m.Err.Error()}
	}
	free := m.Available
	c.Detail = fmt.Sprintf("%s of %s available", bytesText(m.Available), bytesText(m.Total))
	if m.CgroupLimit > 0 {
		left := m.CgroupLimit - min(m.CgroupLimit, m.CgroupInUse)
		free = min(free, left)
		c.Detail += fmt.Sprintf(", %s left of the cgroup's %s", bytesText(left), bytesText(m.CgroupLimit))
	}
	switch {
	case n.MemoryBytes > free:
		c.Status, c.Detail = Fail, c.Detail+fmt.Sprintf("; the run needs %s", bytesText(n.MemoryBytes))
		c.Hint = "free memory, raise the cgroup's limit, or use fewer workers, slots or smaller buckets"
	case free < minAvailable:
		c.Status, c.Hint = Fail, "free at least 1 GiB"
	case free < lowAvailable:
		c.Status, c.Hint = Warn, "the smallest run takes about 3 GiB"
	}
	return c
}

func shm(d Disk) Check {
	c := Check{Name: "/dev/shm", Status: OK, Detail: fmt.Sprintf("%s of %s free", bytesText(d.FreeBytes), bytesText(d.TotalBytes))}
	switch {
	case d.Err != nil:
		c.Status, c.Detail = Warn, d.Err.Error()
	case d.FreeBytes < lowShm:
		c.Status = Warn
	}
	if c.Status != OK {
		c.Hint = "NCCL uses it between GPUs of one machine; in a container start it with --shm-size=1g or --ipc=host"
	}
	return c
}

func memlock(r Readings) Check {
	c := Check{Name: "memlock", Status: OK, Detail: limitText(r.Memlock, bytesText)}
	switch {
	case r.Memlock.Err != nil:
		c.Status, c.Detail, c.Hint = Warn, r.Memlock.Err.Error(), "look at `ulimit -l`"
	case len(r.GPUs) == 0:
		c.Detail += "; not needed without a GPU"
	case r.Memlock.Soft < lowMemlock:
		c.Status, c.Hint = Warn, "arenas are pinned for fast copies: raise it (ulimit -l unlimited; in a container --ulimit memlock=-1)"
	}
	return c
}

func files(l Limit) Check {
	c := Check{Name: "open files", Status: OK, Detail: limitText(l, func(n uint64) string { return strconv.FormatUint(n, 10) })}
	switch {
	case l.Err != nil:
		c.Status, c.Detail = Warn, l.Err.Error()
	case l.Soft < minFiles:
		c.Status = Fail
	case l.Soft < lowFiles:
		c.Status = Warn
	}
	if c.Status != OK {
		c.Hint = "raise the limit (ulimit -n 4096)"
	}
	return c
}

func cacheNeed(p PythonReading) uint64 {
	if p.Problem != "" {
		return envBytes
	}
	return lowCacheBytes / 4
}

func disk(name string, d Disk, least, low uint64) Check {
	c := Check{Name: name, Status: OK, Detail: fmt.Sprintf("%s: %s free", d.Path, bytesText(d.FreeBytes))}
	switch {
	case d.Err != nil:
		c.Status, c.Detail, c.Hint = Fail, d.Err.Error(), "make it, or choose another"
	case d.WriteErr != nil:
		c.Status, c.Detail, c.Hint = Fail, fmt.Sprintf("%s cannot be written: %v", d.Path, d.WriteErr), "change its owner or mode, or choose another"
	case d.FreeBytes < least:
		c.Status, c.Hint = Fail, fmt.Sprintf("free at least %s", bytesText(least))
	case d.FileSystem != "":
		c.Status, c.Detail = Warn, c.Detail+", on "+d.FileSystem
		c.Hint = "choose one on a local disk: over the network locks and syncs are slow or missing"
	case d.FreeBytes < low:
		c.Status, c.Hint = Warn, "little is left for checkpoints and caches"
	}
	return c
}

func runtimeDir(r RuntimeReading) Check {
	c := Check{Name: "runtime directory", Status: OK, Detail: r.Path}
	switch {
	case r.Err != nil:
		c.Status, c.Detail = Fail, r.Err.Error()
	case !r.Own:
		c.Status, c.Detail = Fail, r.Path+" belongs to another user"
	case r.Mode&0o077 != 0:
		c.Status, c.Detail = Fail, fmt.Sprintf("%s has mode %#o, want 0700", r.Path, r.Mode)
	case r.WriteErr != nil:
		c.Status, c.Detail = Fail, fmt.Sprintf("%s cannot be written: %v", r.Path, r.WriteErr)
	case len(filepath.Clean(r.Path)) > maxRuntime:
		c.Status, c.Detail = Fail, fmt.Sprintf("%s is longer than %d bytes: socket paths would be cut", r.Path, maxRuntime)
	}
	if c.Status != OK {
		c.Hint = "set XDG_RUNTIME_DIR to a directory of your own with mode 0700 and a short path"
	}
	return c
}

func clock(r ClockReading) Check {
	c := Check{Name: "clock", Status: OK, Detail: r.Now.UTC().Format("2006-01-02 15:04:05 UTC")}
	switch {
	case r.Now.Year() < firstYear:
		c.Status, c.Hint = Fail, "set the clock: certificates of package indexes are not valid at this date"
	case r.Known && !r.Synchronised:
		c.Status, c.Detail, c.Hint = Warn, c.Detail+", not synchronised", "start a time service (chrony, systemd-timesyncd): times in logs may be wrong"
	}
	return c
}
