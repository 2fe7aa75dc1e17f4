package wire

import "time"

// deadline is when a side of a stream gives up. Under Stream.mu.
type deadline struct {
	timer  *time.Timer
	passed bool
}

// SetReadDeadline makes reads fail from t on, one that waits too; the zero time is
// never. It is net.Conn's.
func (st *Stream) SetReadDeadline(t time.Time) error { return st.setDeadline(&st.readBy, t) }

// SetWriteDeadline does the same for writes that wait for credit. A write that
// waits for the link ends with the link.
func (st *Stream) SetWriteDeadline(t time.Time) error { return st.setDeadline(&st.writeBy, t) }

func (st *Stream) setDeadline(d *deadline, t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer, d.passed = nil, false
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		st.cond.Broadcast()
		return nil
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		if d.timer == timer { // not replaced meanwhile
			d.passed = true
			st.cond.Broadcast()
		}
	})
	d.timer = timer
	return nil
}
