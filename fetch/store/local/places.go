package local

import (
	"sync"

	"bowstring/schema"
	"bowstring/spill/segment"
)

const (
	placeShards = 64
	// placesEach is how many blobs a shard knows at most: all together 131,072, in some 12 MiB.
	placesEach = 2048
)

// places is where blobs lie that were read of late: what the index says of them, kept in memory, as a look at the
// index costs as much as a fifth of comparing 100 KB with their checksum. Of the blobs that it has no room for, any
// one makes room.
//
// It never says what the index has ceased to say. Whoever changes an entry calls forget after the change and before the
// stripe of its key is unlocked; a reader that has looked at the index before that and comes to put in what it saw
// after it finds that changes were made since, and leaves it.
type places [placeShards]placeShard

// placeShard has the blobs of one range of keys.
type placeShard struct {
	mu      sync.Mutex
	known   map[schema.Key]segment.Location
	changes uint64 // of entries of this range, so far
}

func (p *places) of(key *schema.Key) *placeShard { return &p[key[0]%placeShards] }

// find returns where a blob lies, if it is known. If not, changes is what put has to be told.
func (p *places) find(key *schema.Key) (at segment.Location, changes uint64, ok bool) {
	s := p.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok = s.known[*key]
	return at, s.changes, ok
}

// put keeps what the index has said after find, which returned changes.
func (p *places) put(key *schema.Key, at segment.Location, changes uint64) {
	s := p.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes != changes {
		return
	}
	if s.known == nil {
		s.known = map[schema.Key]segment.Location{}
	}
	if len(s.known) >= placesEach {
		for other := range s.known {
			delete(s.known, other)
			break
		}
	}
	s.known[*key] = at
}

// forget takes note that the entry of a blob has changed, or may have.
func (p *places) forget(key *schema.Key) {
	s := p.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	delete(s.known, *key)
}
