package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/dustin/go-humanize"
	"google.golang.org/grpc/status"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// LsCmd is bowstring ls.
type LsCmd struct {
	Dataset string `arg:"" optional:"" help:"Only this dataset, or its snapshot number or tag N in DATASET@N; with a trailing * all whose names begin so."`
	Cache   bool   `help:"What a server keeps of each dataset in its spill, and what jobs have gained by it."`
	JSON    bool   `name:"json" help:"Print a JSON array; with --cache an object."`
}

// listed is one line of ls.
type listed struct {
	Dataset  string `json:"dataset"`
	Split    string `json:"split"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Bytes    int64  `json:"bytes"`
	// Tags are all of the dataset.
	Tags  []store.Tag `json:"tags"`
	Error string      `json:"error,omitempty"` // why rows and bytes are unknown, and -1
}

// size asks for the bytes of a split, which a listing leaves out where it would
// have to open a manifest.
func (l *listed) size(ctx context.Context, client *client) {
	d := &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorPATH,
		Path: []string{schema.FormatSnapshotName(l.Dataset, l.Snapshot, "")}}
	if l.Split != "" {
		d.Path = append(d.Path, l.Split)
	}
	info, err := client.GetFlightInfo(ctx, d)
	if err != nil {
		l.Rows, l.Bytes, l.Error = -1, -1, status.Convert(err).Message()
		return
	}
	l.Bytes = info.GetTotalBytes()
}

// Run lists the splits of the newest snapshots.
func (c *LsCmd) Run(ctx context.Context, app *App) error {
	if c.Cache {
		return c.cache(ctx, app)
	}
	lines := []listed{}
	err := app.with(ctx, false, func(client *client) error {
		var criteria []byte
		if c.Dataset != "" {
			var err error
			if criteria, err = json.Marshal(map[string]string{"dataset": c.Dataset}); err != nil {
				return err
			}
		}
		stream, err := client.ListFlights(ctx, &arrowflight.Criteria{Expression: criteria})
		if err != nil {
			return err
		}
		for {
			info, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			var l listed
			if err := json.Unmarshal(info.GetAppMetadata(), &l); err != nil {
				return fmt.Errorf("%s: the listing is not what this version of bowstring expects: %w", client.target,
					err)
			}
			if path := info.GetFlightDescriptor().GetPath(); len(path) > 1 && l.Split == "" {
				l.Split = path[1]
			}
			l.Rows, l.Bytes = info.GetTotalRecords(), info.GetTotalBytes()
			if l.Bytes < 0 && l.Error == "" {
				l.size(ctx, client)
			}
			if l.Tags == nil {
				l.Tags = []store.Tag{}
			}
			lines = append(lines, l)
		}
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(app.Stdout, lines)
	}
	out := table{numbers: []bool{false, false, true, true, true}}
	out.add("DATASET", "SPLIT", "SNAPSHOT", "ROWS", "BYTES", "TAGS")
	var broken []error
	for _, l := range lines {
		rows, bytes := humanize.Comma(l.Rows), humanize.IBytes(uint64(max(l.Bytes, 0)))
		if l.Error != "" {
			rows, bytes = "?", "?"
			broken = append(broken, fmt.Errorf("%s@%d: %s", l.Dataset, l.Snapshot, l.Error))
		}
		out.add(l.Dataset, l.Split, strconv.FormatInt(l.Snapshot, 10), rows, bytes, tagText(l.Tags))
	}
	return errors.Join(append(broken, out.print(app.Stdout))...)
}
