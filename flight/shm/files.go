package shm

import (
	"encoding/json"
	"net"
	"os"
	"slices"
	"sync"
)

// maxFiles bounds the files that a client has at once: it maps each of them.
const maxFiles = 256

// sharedFiles are the files that a client has got because slots refer to them. A client
// cannot request a file: it gets only those that contain blobs of its own batches.
type sharedFiles struct {
	conn *net.UnixConn // the client's connection; nil if there is none

	handing sync.Mutex    // held while a file is sent, before the ring's mutex; keeps files in the order of their numbers
	files   []*sharedFile // the client's files, least recently used first; guarded by handing
	last    uint64        // the last number given to a file; guarded by handing
}

// sharedFile is a file that a client has.
type sharedFile struct {
	number uint64
	file   *os.File // the cache's own file, which may be closed by now
	slots  int      // slots that refer to the file and so keep it open; guarded by the ring's mutex
}

// handed is the message that comes with the descriptor of a file.
type handed struct {
	File uint64 `json:"file"`
	// Bytes is the length that the client maps: all blobs end before it.
	Bytes int64 `json:"bytes"`
	// Forget are the numbers of files that no slot will refer to again. The client unmaps
	// them.
	Forget []uint64 `json:"forget,omitempty"`
}

// Refer lets a slot that is being written refer to a blob of a file. The blob ends before
// limit. The caller hands the blob to Keep. Refer returns the client's number of the
// file; the client has received the file before it learns of the slot. It returns false
// if the client does not read its socket, or has maxFiles files in use: the caller then
// copies the batch.
func (s *Slot) Refer(file *os.File, limit int64) (number uint64, ok bool) {
	r := s.ring
	r.handing.Lock()
	defer r.handing.Unlock()
	i := slices.IndexFunc(r.files, func(f *sharedFile) bool { return f.file == file })
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

// hand sends a file to the client. The message also lists files that the client can
// forget: closed or removed ones, and, if the client has maxFiles, the least recently
// used one. r.handing is held.
func (r *Ring) hand(file *os.File, limit int64) bool {
	if r.conn == nil {
		return false
	}
	var forget []*sharedFile
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
	r.files = slices.DeleteFunc(r.files, func(f *sharedFile) bool { return slices.Contains(forget, f) })
	r.files = append(r.files, &sharedFile{number: r.last, file: file})
	return true
}
