package journal

import "errors"

// Sync returns at once, and calls done from a goroutine of the writer's when
// every record appended so far is durable, or can never be. Calls of done come
// in the order of the calls of Sync. One fsync serves all who wait. done must
// not wait for the goroutine that appends: that may be waiting for done.
func (w *Writer) Sync(done func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, waiter{w.number, done})
	if !w.syncing {
		w.syncing = true
		// Ends when nobody waits any more; Close and next wait for that.
		go w.syncAll()
	}
}

// syncAll flushes until nobody waits.
func (w *Writer) syncAll() {
	w.mu.Lock()
	for len(w.waiting) > 0 {
		number, f, err := w.number, w.f, w.broken
		need := w.waiting[len(w.waiting)-1].number > w.durable
		if err == nil && need {
			w.mu.Unlock()
			err = f.Sync()
			w.mu.Lock()
			if err != nil {
				// What a failed fsync lost, a second one does not bring back.
				err = w.breakDown("sync", err)
			}
		}
		if err == nil {
			w.reach(number)
		}
		ready := 0
		for ready < len(w.waiting) && (err != nil || w.waiting[ready].number <= w.durable) {
			ready++
		}
		told := w.waiting[:ready]
		w.waiting = w.waiting[ready:]
		w.mu.Unlock()
		for _, t := range told {
			t.done(err)
		}
		w.mu.Lock()
	}
	w.syncing = false
	w.idle.Broadcast()
	w.mu.Unlock()
}

// reach raises the newest durable number. w.mu is held.
func (w *Writer) reach(number uint64) { w.durable = max(w.durable, number) }

// Close makes everything durable, waits for everybody who waits for that, and
// gives the lock back.
func (w *Writer) Close() error {
	w.mu.Lock()
	for w.syncing {
		w.idle.Wait()
	}
	err := w.broken
	if w.f != nil {
		if err == nil && w.durable < w.number {
			if err = w.f.Sync(); err == nil {
				w.reach(w.number)
			}
		}
		err = errors.Join(err, w.f.Close())
		w.f = nil
	}
	if w.broken == nil {
		w.broken = errors.New("append: the journal is closed")
	}
	w.mu.Unlock()
	return errors.Join(err, w.lock.Close())
}
