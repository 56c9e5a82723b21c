package command

import (
	"context"
	"strconv"
	"strings"

	"bowstring/fetch/store"
)

// TagCmd is bowstring tag.
type TagCmd struct {
	Snapshot datasetRef `arg:"" optional:"" name:"dataset[@n]" help:"Snapshot number N of a dataset, or the one that has tag N, or the newest. Without TAG: whose tags are listed (default: all)."`
	Tag      string     `arg:"" optional:"" help:"The name it gets."`
	JSON     bool       `name:"json" help:"Print a JSON array; with TAG an object."`
}

// Help says what a tag is.
func (*TagCmd) Help() string {
	return `A tag names a snapshot wherever a number does: DATASET@prod. It stays on that snapshot until it is moved or removed.
What has a tag is neither dropped nor retained away. A tag that another snapshot of the dataset has moves. It is no
number; otherwise it is made of what names of datasets are.`
}

// taggedSnapshot is the answer of the actions for tags.
type taggedSnapshot struct {
	Dataset  string `json:"dataset"`
	Tag      string `json:"tag"`
	Snapshot int64  `json:"snapshot"`
}

// Run sets a tag, or lists tags.
func (c *TagCmd) Run(ctx context.Context, app *App) error {
	if c.Tag == "" {
		return c.list(ctx, app)
	}
	return askTags(ctx, app, "tag", c.JSON, "is", struct {
		Dataset  string `json:"dataset"`
		Snapshot int64  `json:"snapshot,omitempty"`
		Tag      string `json:"tag,omitempty"`
		Name     string `json:"name"`
	}{c.Snapshot.Name, c.Snapshot.Snapshot, c.Snapshot.Tag, c.Tag})
}

// askTags calls an action on one tag and prints what it did. verb is "is" or "was".
func askTags(ctx context.Context, app *App, action string, asJSON bool, verb string, body any) error {
	done, err := ask[taggedSnapshot](ctx, app, action, body)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(app.Stdout, done)
	}
	app.Notef("%s@%s %s snapshot %d", done.Dataset, done.Tag, verb, done.Snapshot)
	return nil
}

// list prints the tags of a dataset, or of all datasets.
func (c *TagCmd) list(ctx context.Context, app *App) error {
	// Without a dataset the server lists the tags of all.
	body := map[string]string{}
	if c.Snapshot.Name != "" {
		body["dataset"] = c.Snapshot.String()
	}
	list, err := askAll[taggedSnapshot](ctx, app, "tags", body)
	if err != nil {
		return err
	}
	out := tableOf("DATASET", "TAG", ">SNAPSHOT")
	for _, t := range list {
		out.add(t.Dataset, t.Tag, strconv.FormatInt(t.Snapshot, 10))
	}
	return app.show(c.JSON, list, out)
}

// UntagCmd is bowstring untag.
type UntagCmd struct {
	Snapshot datasetRef `arg:"" name:"dataset@tag" help:"The tag to remove. The snapshot stays."`
	JSON     bool       `name:"json" help:"Print a JSON object."`
}

// Run removes a tag.
func (c *UntagCmd) Run(ctx context.Context, app *App) error {
	if c.Snapshot.Tag == "" {
		return usagef("untag: got %s, want DATASET@TAG, such as %s@prod", c.Snapshot, c.Snapshot.Name)
	}
	return askTags(ctx, app, "untag", c.JSON, "was", struct {
		Dataset string `json:"dataset"`
		Name    string `json:"name"`
	}{c.Snapshot.Name, c.Snapshot.Tag})
}

// tagText returns tags with the numbers of their snapshots, for people.
func tagText(tags []store.Tag) string {
	text := make([]string, len(tags))
	for i, t := range tags {
		text[i] = t.Name + "=" + strconv.FormatInt(t.Snapshot, 10)
	}
	return strings.Join(text, ", ")
}
