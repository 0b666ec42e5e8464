package image

import (
	"sync"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Ahead makes images, one ahead of need: the kernel clears 12 bytes a parameter
// for a second and more, and the state stands still until its image is there.
// It is for any goroutine.
type Ahead struct {
	most int
	make func(runner.Step, uint64) (*Image, error)

	mu     sync.Mutex
	held   int       // images that are not closed, the spare among them
	spare  chan made // of the spare, under way or there; nil: none
	size   uint64    // of the spare
	closed bool
}

type made struct {
	image *Image
	err   error
}

// NewAhead gives one that holds at most so many images for a spare to be among
// them; more than that are made when they are asked for.
func NewAhead(most int) *Ahead { return &Ahead{most: most, make: Make} }

// Make gives an empty image, the spare where there is one of this size. It may
// take as long as touching the memory takes. That a spare could not be made is
// no error: the image is tried anew.
func (a *Ahead) Make(step runner.Step, size uint64) (*Image, error) {
	a.mu.Lock()
	spare, fits := a.spare, a.size == size
	a.spare = nil
	a.mu.Unlock()
	var i *Image
	if spare != nil {
		if m := <-spare; m.err == nil {
			i = m.image
		}
	}
	if i != nil && !fits {
		if err := a.end(i); err != nil {
			return nil, err
		}
		i = nil
	}
	if i == nil {
		var err error
		if i, err = a.begin(step, size); err != nil {
			return nil, err
		}
	}
	i.Step = step
	a.prepare(size)
	return i, nil
}

// Close lets go of the spare; images that were given stay. Nothing is made
// ahead afterwards.
func (a *Ahead) Close() error {
	a.mu.Lock()
	spare := a.spare
	a.spare, a.closed = nil, true
	a.mu.Unlock()
	if spare == nil {
		return nil
	}
	if m := <-spare; m.err == nil {
		return m.image.Close()
	}
	return nil
}

// begin makes an image and counts it until it is closed.
func (a *Ahead) begin(step runner.Step, size uint64) (*Image, error) {
	a.mu.Lock()
	a.held++
	a.mu.Unlock()
	i, err := a.make(step, size)
	if err != nil {
		a.forget()
		return nil, err
	}
	i.ended = func() {
		a.forget()
		a.prepare(size)
	}
	return i, nil
}

// end closes an image in whose place none is to be made ahead.
func (a *Ahead) end(i *Image) error {
	i.ended = a.forget
	return i.Close()
}

func (a *Ahead) forget() {
	a.mu.Lock()
	a.held--
	a.mu.Unlock()
}

// prepare has a spare made, unless there is one, or no room for it.
func (a *Ahead) prepare(size uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.spare != nil || a.held >= a.most {
		return
	}
	spare := make(chan made, 1)
	a.spare, a.size = spare, size
	go func() {
		i, err := a.begin(0, size)
		spare <- made{i, err}
	}()
}
