package links

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"bowstring/internal/delay"
	"bowstring/schema"
)

// Anybody is who comes from a process that was not named.
const Anybody = ""

// Trouble is what befalls what passes.
type Trouble string

// What may befall it.
const (
	None Trouble = ""
	// Cut closes connections, and new ones as soon as they are made.
	Cut Trouble = "cut"
	// Hold keeps what passes until it is over, as a network does that loses all packets: nobody is told.
	Hold Trouble = "hold"
)

// Board is all links and doors. It is safe for concurrent use. Close ends what runs.
type Board struct {
	mu     sync.Mutex
	closed bool
	links  map[string]*delay.Link
	doors  map[string]*door
	names  map[int]string // of processes, by their ids
}

// NewBoard returns a board without links.
func NewBoard() *Board {
	return &Board{links: map[string]*delay.Link{}, doors: map[string]*door{}, names: map[int]string{}}
}

// errClosed says that there is no board any more.
var errClosed = fmt.Errorf("%w: the links are closed", schema.ErrUnavailable)

// Link makes a link.
func (b *Board) Link(name string, config delay.Config) error {
	if err := schema.CheckName("link", name); err != nil {
		return err
	}
	if err := config.Check(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return errClosed
	case b.links[name] != nil:
		return fmt.Errorf("%w: link %s", schema.ErrExists, name)
	}
	b.links[name] = delay.New(config)
	return nil
}

// Open makes a door that leads by way of a link to the server at an address, HOST:PORT, and returns its own.
func (b *Board) Open(name, link, to string) (address string, err error) {
	if err := schema.CheckName("door", name); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return "", errClosed
	case b.doors[name] != nil:
		return "", fmt.Errorf("%w: door %s", schema.ErrExists, name)
	case b.links[link] == nil:
		return "", fmt.Errorf("%w: link %s", schema.ErrNotFound, link)
	}
	d, err := newDoor(b.links[link], to, b.who)
	if err != nil {
		return "", err
	}
	b.doors[name] = d
	return d.address(), nil
}

// Name says who a process is: what it connects to from then on, it does by that name.
func (b *Board) Name(pid int, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names[pid] = name
}

// who is the name of the process that has the other end of a connection.
func (b *Board) who(remote, local string) string {
	b.mu.Lock()
	names := maps.Clone(b.names)
	b.mu.Unlock()
	socket, ok := socketOf(remote, local)
	if !ok {
		return Anybody
	}
	for pid, name := range names {
		if holds(pid, socket) {
			return name
		}
	}
	return Anybody
}

// Set has a trouble befall what comes from a process through a door, in place of what did before.
func (b *Board) Set(name, from string, t Trouble) error {
	if t != None && t != Cut && t != Hold {
		return &schema.FieldError{Field: "trouble", Got: schema.Quote(string(t)), Want: `"cut", "hold" or ""`}
	}
	b.mu.Lock()
	d := b.doors[name]
	b.mu.Unlock()
	if d == nil {
		return fmt.Errorf("%w: door %s", schema.ErrNotFound, name)
	}
	d.set(from, t)
	return nil
}

// Count is what came from a process through a door: connections, and bytes to the server and from it.
type Count struct {
	Door        string `json:"door"`
	From        string `json:"from"`
	Connections int64  `json:"connections"`
	To          int64  `json:"to_bytes"`
	Back        int64  `json:"back_bytes"`
}

// Counts returns what came through all doors so far, by door and process.
func (b *Board) Counts() []Count {
	b.mu.Lock()
	doors := maps.Clone(b.doors)
	b.mu.Unlock()
	list := []Count{}
	for name, d := range doors {
		for from, n := range d.counts() {
			list = append(list, Count{name, from, n.connections.Load(), n.to.Load(), n.back.Load()})
		}
	}
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Door, b.Door), cmp.Compare(a.From, b.From))
	})
	return list
}

// Close cuts everything, and returns when nothing runs any more.
func (b *Board) Close() error {
	b.mu.Lock()
	b.closed = true
	doors, links := b.doors, b.links
	b.doors, b.links = nil, nil
	b.mu.Unlock()
	var errs []error
	for _, d := range doors {
		errs = append(errs, d.stop())
	}
	for _, l := range links {
		errs = append(errs, l.Close()) // ends what the doors wait for
	}
	for _, d := range doors {
		d.running.Wait()
	}
	return errors.Join(errs...)
}
