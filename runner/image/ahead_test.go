package image

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/dflash-runner/dflash-runner/runner"
)

// counting is an Ahead that counts what it makes, until refuse.
func counting(most int) (a *Ahead, made *int, refuse *bool) {
	a, made, refuse = NewAhead(most), new(int), new(bool)
	a.make = func(s runner.Step, size uint64) (*Image, error) {
		if *refuse {
			return nil, errors.New("no memory")
		}
		*made++
		return Make(s, size)
	}
	return a, made, refuse
}

// TestAhead: an image is there before it is asked for, as long as there is room.
func TestAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, made, _ := counting(3)
		expect := func(what string, want int) {
			t.Helper()
			if synctest.Wait(); *made != want {
				t.Errorf("%s: want %d made, got %d", what, want, *made)
			}
		}
		take := func(step runner.Step) *Image {
			t.Helper()
			i, err := a.Make(step, 4096)
			if err != nil || i.Step != step || i.Bytes() != 4096 {
				t.Fatalf("step %d: got %+v, %v", step, i, err)
			}
			return i
		}
		first := take(1)
		expect("the first and a spare", 2)
		second := take(2)
		expect("the spare is given, and another made", 3)
		third := take(3)
		expect("three are held: none ahead", 3)
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		expect("room again", 4)
		_ = first.Close() // a second time, which counts nothing
		expect("closed twice", 4)
		fourth := take(4)
		fifth, err := a.Make(5, 4096)
		if err != nil {
			t.Fatal(err)
		}
		expect("more than there is room for are made when asked for", 5)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		for _, i := range []*Image{second, third, fourth, fifth} {
			if err := i.Close(); err != nil {
				t.Error(err)
			}
		}
		expect("over", 5)
		if a.held != 0 {
			t.Errorf("held at the end: want 0, got %d", a.held)
		}
	})
}

// TestAheadOfAnotherSize: a spare that does not fit makes way.
func TestAheadOfAnotherSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, made, _ := counting(3)
		first, err := a.Make(1, 4096)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		second, err := a.Make(2, 8192)
		if err != nil || second.Bytes() != 8192 {
			t.Fatalf("got %+v, %v", second, err)
		}
		if synctest.Wait(); *made != 4 || a.held != 3 {
			t.Errorf("want 4 made and 3 held, got %d and %d", *made, a.held)
		}
		for _, close := range []func() error{a.Close, first.Close, second.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestAheadWithoutMemory: a spare that could not be had is no error, an image is.
func TestAheadWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, made, refuse := counting(3)
		first, err := a.Make(1, 4096)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		second, err := a.Make(2, 4096)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		*refuse = true
		if err := first.Close(); err != nil { // the third is a spare already
			t.Error(err)
		}
		third, err := a.Make(3, 4096)
		if synctest.Wait(); err != nil || *made != 3 {
			t.Fatalf("want the spare of before, got %d made and %v", *made, err)
		}
		if _, err := a.Make(4, 4096); err == nil {
			t.Error("without memory: want an error, got none")
		}
		*refuse = false
		fourth, err := a.Make(4, 4096)
		if err != nil {
			t.Fatalf("memory again: %v", err)
		}
		synctest.Wait()
		for _, close := range []func() error{second.Close, a.Close, third.Close, fourth.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
		if a.held != 0 {
			t.Errorf("held at the end: want 0, got %d", a.held)
		}
	})
}
