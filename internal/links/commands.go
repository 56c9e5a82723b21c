package links

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"bowstring/internal/delay"
	"bowstring/schema"
)

// Command is what is asked of a board: one of its fields.
type Command struct {
	Link  *LinkCommand  `json:"link,omitempty"`
	Open  *OpenCommand  `json:"open,omitempty"`
	Name  *NameCommand  `json:"name,omitempty"`
	Set   *SetCommand   `json:"set,omitempty"`
	Count *CountCommand `json:"count,omitempty"`
}

// LinkCommand makes a link.
type LinkCommand struct {
	Name   string `json:"name"`
	RTT    int64  `json:"rtt_us"`      // in microseconds
	Jitter int64  `json:"jitter_us"`   // likewise
	PerSec int64  `json:"bytes_per_s"` // in each direction; 0 for any
	Window int64  `json:"window"`      // bytes of a connection that may be unacknowledged; 0 for any
}

// OpenCommand makes a door.
type OpenCommand struct {
	Door string `json:"door"`
	Link string `json:"link"`
	To   string `json:"to"` // HOST:PORT
}

// NameCommand says who a process is.
type NameCommand struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// SetCommand has a trouble befall what comes from a process through a door.
type SetCommand struct {
	Door    string  `json:"door"`
	From    string  `json:"from"`
	Trouble Trouble `json:"trouble"`
}

// CountCommand asks what has passed.
type CountCommand struct{}

// Reply is what became of a command.
type Reply struct {
	Address string  `json:"address,omitempty"` // of the door that was made
	Counts  []Count `json:"counts,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// maxCommand is how long a command may be, in bytes.
const maxCommand = 64 << 10

// Run does what the lines of in ask for, JSON of a Command each, and answers each with a line, until in ends.
func (b *Board) Run(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxCommand)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		reply, err := b.do(lines.Bytes())
		if err != nil {
			reply.Error = err.Error()
		}
		if err := answers.Encode(reply); err != nil {
			return fmt.Errorf("answer a command: %w", err)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read a command: %w", err)
	}
	return nil
}

func (b *Board) do(line []byte) (Reply, error) {
	var c Command
	if err := schema.DecodeJSON("command", line, &c); err != nil {
		return Reply{}, err
	}
	switch {
	case c.Link != nil:
		return Reply{}, b.Link(c.Link.Name, delay.Config{
			RTT: microseconds(c.Link.RTT), Jitter: microseconds(c.Link.Jitter), Bandwidth: c.Link.PerSec,
			Window: c.Link.Window,
		})
	case c.Open != nil:
		address, err := b.Open(c.Open.Door, c.Open.Link, c.Open.To)
		return Reply{Address: address}, err
	case c.Name != nil:
		b.Name(c.Name.PID, c.Name.Name)
		return Reply{}, nil
	case c.Set != nil:
		return Reply{}, b.Set(c.Set.Door, c.Set.From, c.Set.Trouble)
	case c.Count != nil:
		return Reply{Counts: b.Counts()}, nil
	}
	return Reply{}, &schema.FieldError{Field: "command", Got: schema.Quote(string(line)),
		Want: "one of link, open, name, set and count"}
}

// microseconds is a time, of what no link takes if it is too long for one.
func microseconds(n int64) time.Duration {
	if n > int64(24*time.Hour/time.Microsecond) {
		return 24 * time.Hour
	}
	return time.Duration(n) * time.Microsecond
}
