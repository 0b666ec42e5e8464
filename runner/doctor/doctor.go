// Package doctor says whether a machine can run this program, and what to do
// where it cannot. Read looks at the machine; Judge, which is pure, turns what
// was read into checks.
package doctor

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// Status of a check. Warn is degraded but workable; fail means that a run would
// be refused or would not work.
type Status string

// The statuses.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Check is one line of the doctor's report.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

// Needs is what a planned run takes; zero fields are not checked.
type Needs struct {
	MemoryBytes  uint64 // arenas, images and workers together
	GPU          bool   // some worker is on one
	Placement    string // where workers would run
	PlacementErr error  // why they can run nowhere

	ArenaKind   string // that the plan chose; empty: there is no plan
	ArenaReason string // why it is host memory although there are GPUs
	ArenaErr    error  // the kind asked for cannot be

	Plugin         string // that schedules; empty: none does
	PluginErr      error  // why its files are refused
	PluginRequired bool   // the run does not begin without it
}

// Readings is what was read of a machine. A field that could not be read says
// so by an error or by being negative.
type Readings struct {
	OS, Arch, Kernel string
	MemfdErr         error

	Python   PythonReading
	GPUs     []GPU
	GPUErr   error // nvidia-smi is there and does not work
	NoPeer   [][2]int
	Memory   MemoryReading
	Shm      Disk
	Memlock  Limit
	Files    Limit
	RunDir   Disk
	CacheDir Disk
	Runtime  RuntimeReading
	Clock    ClockReading
}

// PythonReading is the environment of the workers.
type PythonReading struct {
	Dir      string
	Problem  string
	Python   string
	Path     string
	Err      error
	Hint     string
	Packages map[string]string // installed
	Wanted   map[string]string // locked
}

// GPU is one that nvidia-smi lists.
type GPU struct {
	Index       int
	Name        string
	UUID        string
	MemoryBytes uint64
	UsedBytes   uint64
	Driver      string
	MIG         bool
	Processes   []int // that compute on it, as far as they can be seen from here
}

// Found is the GPU as placement takes it.
func (g GPU) Found() placement.Found {
	return placement.Found{Index: g.Index, UUID: g.UUID, Name: g.Name, Bytes: g.MemoryBytes, UsedBytes: g.UsedBytes, Processes: g.Processes, MIG: g.MIG}
}

// MemoryReading is in bytes; a cgroup limit of 0 is none.
type MemoryReading struct {
	Total, Available         uint64
	CgroupLimit, CgroupInUse uint64
	Err                      error
}

// Disk is a directory and the file system it is on.
type Disk struct {
	Path                  string
	FreeBytes, TotalBytes uint64
	FileSystem            string // "" for a local one
	WriteErr              error
	Err                   error
}

// Limit is a resource limit; unlimited is the largest u64.
type Limit struct {
	Soft, Hard uint64
	Err        error
}

// RuntimeReading is the directory for sockets.
type RuntimeReading struct {
	Path     string
	Mode     uint32 // permission bits
	Own      bool   // owned by this user
	WriteErr error
	Err      error
}

// ClockReading is the wall clock.
type ClockReading struct {
	Now          time.Time
	Synchronised bool
	Known        bool // whether the kernel says if it is synchronised
}

// Judge gives one check for each thing that matters, in a fixed order.
func Judge(r Readings, n Needs) []Check {
	all := []Check{
		system(r), python(r.Python), packages(r.Python), devices(r, n), peers(r), arenas(n), memory(r.Memory, n),
		shm(r.Shm), memlock(r), files(r.Files), disk("run directory", r.RunDir, minRunBytes, lowRunBytes),
		disk("cache directory", r.CacheDir, cacheNeed(r.Python), lowCacheBytes), runtimeDir(r.Runtime), clock(r.Clock), placed(n),
	}
	if n.Plugin != "" {
		all = append(all, plugin(n))
	}
	return all
}

// Worst gives the gravest status among checks.
func Worst(checks []Check) Status {
	worst := OK
	for _, c := range checks {
		if c.Status == Fail || c.Status == Warn && worst == OK {
			worst = c.Status
		}
	}
	return worst
}
