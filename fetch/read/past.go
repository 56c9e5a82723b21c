package read

import "time"

// What the way to the last tier gave is remembered by the minute, for half a day.
const (
	spellLength = time.Minute
	spells      = 720
)

// Spell is what was seen of the way to the last tier in some time.
type Spell struct {
	Begin   time.Time
	Latency time.Duration // the least of a read
	// Full is for how long the way was asked for all that it carries, Reads and Bytes are what it
	// gave then.
	Full         time.Duration
	Reads, Bytes int64
}

// merge adds what was seen in another time.
func (s *Spell) merge(o *Spell) {
	if s.Begin.IsZero() || o.Begin.Before(s.Begin) {
		s.Begin = o.Begin
	}
	if o.Latency > 0 && (s.Latency == 0 || o.Latency < s.Latency) {
		s.Latency = o.Latency
	}
	s.Full += o.Full
	s.Reads += o.Reads
	s.Bytes += o.Bytes
}

// past is what was seen of late. It is guarded by Reader.mu.
type past struct {
	list [spells]Spell // a ring by the minute; what is too old is overwritten
}

// add takes note of a round that ended: in it the path was full for so long, and gave
// so many reads then.
func (p *past) add(now time.Time, full time.Duration, reads, bytes int64, latency time.Duration) {
	begin := now.Truncate(spellLength)
	at := &p.list[begin.Unix()/int64(spellLength/time.Second)%spells]
	if !at.Begin.Equal(begin) {
		*at = Spell{Begin: begin}
	}
	one := Spell{Begin: begin, Latency: latency}
	if full > 0 {
		one.Full, one.Reads, one.Bytes = full, reads, bytes
	}
	at.merge(&one)
}

// between is what was seen in the minutes that from and to lie in, and between them.
func (p *past) between(from, to time.Time) (sum Spell) {
	from = from.Truncate(spellLength)
	for i := range p.list {
		if s := &p.list[i]; !s.Begin.IsZero() && !s.Begin.Before(from) && !s.Begin.After(to) {
			sum.merge(s)
		}
	}
	return sum
}

// Past returns what was seen of the way to the last tier in the minutes that from and to lie
// in, and between them; the zero Spell if nothing was. It goes back half a day.
func (r *Reader) Past(from, to time.Time) Spell {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.flow.past.between(from, to)
}
