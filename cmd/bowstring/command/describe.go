package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// DescribeCmd is bowstring describe.
type DescribeCmd struct {
	Dataset datasetRef `arg:"" name:"dataset[@n]" help:"Dataset, of which the newest snapshot, or number or tag N."`
	JSON    bool       `name:"json" help:"Print a JSON object."`
}

// description is the answer of the describe action. Fields that this program does not use
// are left out, and --json prints the server's text itself.
type description struct {
	// Parent is the number of the snapshot that this one was made from, and 0 for none.
	// Snapshots are the numbers of all snapshots.
	Dataset  string    `json:"dataset"`
	Snapshot int64     `json:"snapshot"`
	Parent   int64     `json:"parent"`
	Created  time.Time `json:"created"`
	Source   string    `json:"source"`
	Rows     int64     `json:"rows"`
	Splits   []struct {
		Name   string         `json:"name"`
		Rows   int64          `json:"rows"`
		Ranges []schema.Range `json:"ranges"`
	} `json:"splits"`
	Columns   []column `json:"columns"`
	BlobBytes int64    `json:"blob_bytes"`
	Manifest  struct {
		Chunks int64 `json:"chunks"`
		Bytes  int64 `json:"bytes"`
	} `json:"manifest"`
	Proof     *store.Proof `json:"proof"`
	Snapshots []int64      `json:"snapshots"`
	Tags      []store.Tag  `json:"tags"`
}

// column is a column in the answer of the describe action.
type column struct {
	// Media, Classes and Bytes are set for columns to which they apply. Bytes is of a
	// blob column.
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Nullable bool     `json:"nullable"`
	Kind     string   `json:"kind"` // id, metadata or blob
	Media    string   `json:"media,omitempty"`
	Classes  []string `json:"classes,omitempty"`
	Bytes    int64    `json:"bytes,omitempty"`
}

// describe returns the description of a snapshot.
func describe(ctx context.Context, c *client, ref datasetRef) (description, error) {
	return actOne[description](ctx, c, "describe", datasetBody(ref))
}

// datasetBody returns the body of the actions on a dataset or on one of its snapshots.
func datasetBody(ref datasetRef) any {
	return struct {
		Dataset  string `json:"dataset"`
		Snapshot int64  `json:"snapshot,omitempty"`
		Tag      string `json:"tag,omitempty"`
	}{ref.Name, ref.Snapshot, ref.Tag}
}

// Run describes a snapshot.
func (c *DescribeCmd) Run(ctx context.Context, app *App) error {
	// The answer is decoded only for people.
	raw, err := ask[json.RawMessage](ctx, app, "describe", datasetBody(c.Dataset))
	if err != nil {
		return err
	}
	if c.JSON { // the server's answer, with fields that this version does not know
		return printJSON(app.Stdout, raw)
	}
	var d description
	if err := json.Unmarshal(raw, &d); err != nil {
		return unexpected("describe", err)
	}
	return d.print(app.Stdout)
}

// print prints three tables. They are separate, because each has widths of its own.
func (d *description) print(out io.Writer) error {
	snapshots := make([]string, len(d.Snapshots))
	for i, n := range d.Snapshots {
		snapshots[i] = strconv.FormatInt(n, 10)
	}
	// A table without a heading has rows of a name and a value.
	var facts, splits, columns table
	facts.add("dataset", d.Dataset)
	facts.add("snapshot", fmt.Sprintf("%d (there are %s)", d.Snapshot, strings.Join(snapshots, ", ")))
	if len(d.Tags) > 0 {
		facts.add("tags", tagText(d.Tags))
	}
	facts.add("created", d.Created.UTC().Format(time.DateTime+" MST"))
	if d.Source != "" {
		facts.add("source", d.Source)
	}
	facts.add("rows", humanize.Comma(d.Rows))
	facts.add("blobs", humanize.IBytes(uint64(d.BlobBytes)))
	// Only data that was attached without being read has a proof.
	if d.Proof != nil {
		facts.add("checksums", proofText(d.Proof))
	}
	facts.add("manifest", fmt.Sprintf("%s in %s", humanize.IBytes(uint64(d.Manifest.Bytes)),
		plural(d.Manifest.Chunks, "chunk")))
	facts.add()
	// The number of rows is aligned to the right.
	splits.numbers = []bool{false, true}
	splits.add("SPLIT", "ROWS")
	for _, s := range d.Splits {
		splits.add(s.Name, humanize.Comma(s.Rows))
	}
	splits.add()
	columns.add("COLUMN", "TYPE", "KIND", "NULLABLE", "DETAILS")
	for _, c := range d.Columns {
		nullable := "no"
		if c.Nullable {
			nullable = "yes"
		}
		columns.add(c.Name, c.Type, c.Kind, nullable, c.details())
	}
	return errors.Join(facts.print(out), splits.print(out), columns.print(out))
}

// proofText returns how many of the blobs that were attached without a checksum have one
// by now.
func proofText(p *store.Proof) string {
	if p.Blobs == p.OfBlobs {
		return fmt.Sprintf("learned of all %s that were attached without", plural(p.OfBlobs, "blob"))
	}
	return fmt.Sprintf("learned of %s of %s that were attached without, %s of %s: reading gives the others theirs",
		humanize.Comma(p.Blobs), plural(p.OfBlobs, "blob"), humanize.IBytes(uint64(p.Bytes)), humanize.IBytes(uint64(p.OfBytes)))
}

// details returns a column's properties besides its type. A column with many classes
// shows the first eight.
func (c *column) details() string {
	var details []string
	if c.Media != "" {
		details = append(details, c.Media)
	}
	if c.Kind == "blob" {
		details = append(details, humanize.IBytes(uint64(c.Bytes)))
	}
	if n := len(c.Classes); n > 0 {
		// ImageNet has 1,000 classes, which would fill screens.
		const shown = 8
		names := slices.Clone(c.Classes[:min(n, shown)])
		if n > shown {
			names = append(names, "…")
		}
		details = append(details, fmt.Sprintf("%d classes: %s", n, strings.Join(names, ", ")))
	}
	return strings.Join(details, ", ")
}

// plural returns a count with its noun, which forms its plural by an s.
func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return humanize.Comma(n) + " " + noun + "s"
}
