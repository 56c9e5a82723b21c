package shm

import (
	"encoding/json"
	"net"
	"os"
	"slices"
	"sync"
)

// maxFiles is how many files a client has at once. It maps each.
const maxFiles = 256

// lending is what a client was handed of the files that slots refer to. A client cannot ask for one: it gets those in
// which something lies that it was sent.
type lending struct {
	conn *net.UnixConn // to the client; nil where there is none

	handing sync.Mutex  // held while a file is handed over; before the ring's mutex
	files   []*lentFile // that the client has, the one used last at the end; guarded by handing
	last    uint64      // number given last; guarded by handing
}

// lentFile is a file that a client has.
type lentFile struct {
	number uint64
	file   *os.File // the owner's, perhaps closed by now
	slots  int      // that refer to it, which keeps the owner from closing it; guarded by the ring's mutex
}

// handed is what the server says by the socket when it hands over a file, whose descriptor goes beside.
type handed struct {
	File uint64 `json:"file"`
	// Bytes is how much of it the client maps: no blob lies beyond.
	Bytes int64 `json:"bytes"`
	// Forget are files that nothing will refer to any more, under these numbers.
	Forget []uint64 `json:"forget,omitempty"`
}

// Refer has a slot that is being written refer to something in a file, which it keeps (see Keep) and which ends before
// limit. It returns the file's number for this client, who has it before it is told of the slot; false if it cannot be
// had, as the client does not take what it is handed, or has too many.
func (s *Slot) Refer(file *os.File, limit int64) (number uint64, ok bool) {
	r := s.ring
	r.handing.Lock()
	defer r.handing.Unlock()
	i := slices.IndexFunc(r.files, func(f *lentFile) bool { return f.file == file })
	if i < 0 {
		if !r.hand(file, limit) {
			r.mu.Lock()
			r.copied++
			r.mu.Unlock()
			return 0, false
		}
		i = len(r.files) - 1
	}
	f := r.files[i]
	r.files = append(slices.Delete(r.files, i, i+1), f)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(s.files, f) {
		f.slots++
		s.files = append(s.files, f)
	}
	return f.number, true
}

// hand gives the client a file, and has it forget those that are gone, or that were not used for long. r.handing is
// held.
func (r *Ring) hand(file *os.File, limit int64) bool {
	if r.conn == nil {
		return false
	}
	var forget []*lentFile
	full := len(r.files) >= maxFiles
	r.mu.Lock()
	for _, f := range r.files {
		if f.slots == 0 && (full || isGone(f.file)) {
			forget, full = append(forget, f), false
		}
	}
	r.mu.Unlock()
	if full {
		return false // all of them are in use
	}
	say := handed{File: r.last + 1, Bytes: limit}
	for _, f := range forget {
		say.Forget = append(say.Forget, f.number)
	}
	said, err := json.Marshal(say)
	if err != nil || handOver(r.conn, said, file) != nil {
		return false
	}
	r.last++
	r.files = slices.DeleteFunc(r.files, func(f *lentFile) bool { return slices.Contains(forget, f) })
	r.files = append(r.files, &lentFile{number: r.last, file: file})
	return true
}
