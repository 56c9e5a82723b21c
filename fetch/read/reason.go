package read

// Reason says why a blob was read from the last tier.
type Reason uint8

// Reasons for reads of the last tier. Without other nodes there are but Own, Ahead, Page, Hedge and Retry.
const (
	Own         Reason = iota // a stream wants it, and it is this node that reads it
	Lent                      // another node wants it, and it is this node that reads it
	Ahead                     // it is this node that reads it, and keeps it before a stream wants it
	Page                      // a page of a manifest, or what is at no place: no other node is asked for those
	Astray                    // another node wants it, whose view of who owns it is another one
	Unreachable               // another node owns it, and can't be asked now
	Refused                   // another node was asked, and has not sent it
	Hedge                     // an attempt beside one that was slow
	Retry                     // an attempt after one that failed, or was silent for long
	reasons
)

var reasonNames = [reasons]string{"own", "lent", "ahead", "page", "astray", "unreachable", "refused", "hedge", "retry"}

// String returns the name of a reason, as statistics have it.
func (r Reason) String() string { return reasonNames[r] }

// Reasons are reads by reason.
type Reasons [reasons]int64

// Map returns what is not 0, by name.
func (r *Reasons) Map() map[string]int64 {
	m := make(map[string]int64, reasons)
	for i, n := range r {
		if n != 0 {
			m[Reason(i).String()] = n
		}
	}
	return m
}

// ReasonNames are the names of all reasons.
func ReasonNames() []string { return reasonNames[:] }

// reason is why a read whose first attempt is at the last tier is made there. r.opts.Keeps is asked.
func (r *Reader) reason(rd *read) Reason {
	switch {
	case rd.place.Dataset == 0 || rd.place.IsPage():
		return Page
	case !r.opts.Keeps(rd.ref.Key):
		if rd.here {
			return Astray
		}
		return Unreachable
	case rd.fill:
		return Ahead
	case rd.here:
		return Lent
	}
	return Own
}

// reasonLocked is why an attempt that has brought a blob from the last tier was made.
func (r *Reader) reasonLocked(a Attempt) Reason {
	rd := a.read
	switch {
	case a.why != Own:
		return a.why
	case a.nth == 0 && rd.asked:
		return Refused
	}
	return r.reason(rd)
}
