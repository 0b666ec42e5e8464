package up

import (
	"os"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

// memory makes arenas and images for the loop, after checking that there is
// room: what the kernel would only answer with a kill is an error here.
type memory struct{ images *image.Ahead }

func (memory) MakeArena(id runner.Arena, _ runner.Worker, slots uint32, slotBytes uint64) (drive.Region, error) {
	if err := arena.CheckMemory(uint64(slots) * slotBytes); err != nil {
		return nil, err
	}
	a, err := arena.New(id, slots, slotBytes)
	if err != nil {
		return nil, err
	}
	return region{a.Kind(), a.Bytes(), a.File(), a.ReadOnlyFile(), a.Close}, nil
}

func (memory) TakeArena(o runner.CreateArena, f *os.File) (drive.Region, error) {
	a, err := arena.TakeCUDA(o, f)
	if err != nil {
		return nil, err
	}
	return region{a.Kind(), a.Bytes(), a.File(), a.ReadOnlyFile(), a.Close}, nil
}

func (m memory) MakeImage(step runner.Step, nbytes uint64) (drive.Region, error) {
	i, err := m.images.Make(step, nbytes)
	if err != nil {
		return nil, err
	}
	return region{arena.KindMemfd, nbytes, i.File(), i.ReadOnlyFile(), i.Close}, nil
}

// region is memory that is held by its descriptors.
type region struct {
	kind     string
	bytes    uint64
	writable *os.File
	readOnly *os.File
	close    func() error
}

var _ drive.Region = region{}

func (r region) Kind() string       { return r.kind }
func (r region) Bytes() uint64      { return r.bytes }
func (r region) Writable() *os.File { return r.writable }
func (r region) ReadOnly() *os.File { return r.readOnly }
func (r region) Close() error       { return r.close() }
