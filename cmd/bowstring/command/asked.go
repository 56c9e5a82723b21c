package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/object"
)

// askedOfBuckets counts the requests of a command to buckets. The zero value is ready. It
// belongs to the goroutine of the command; what of returns is safe for concurrent use.
type askedOfBuckets struct{ requests *object.Requests }

// of returns the counters, which also limit the rate of the requests. All buckets of a
// command share them, so that a limit holds for all of them together.
func (a *askedOfBuckets) of() *object.Requests {
	if a.requests == nil {
		a.requests = object.NewRequests(object.RequestsOptions{})
	}
	return a.requests
}

// open opens a bucket whose requests are counted. The caller closes the bucket.
func (a *askedOfBuckets) open(ctx context.Context, url string) (object.Bucket, error) {
	return object.Open(ctx, url, object.Options{Requests: a.of()})
}

// bucketAsked is the requests of a command to a bucket, for --json.
type bucketAsked struct {
	Bucket string `json:"bucket"`
	object.Counts
	Cost   object.Bill `json:"cost_usd"` // by list prices, if the bytes stay in the region
	Priced string      `json:"priced,omitempty"`
}

// list returns the requests to each bucket. Directories are left out, because they cost
// nothing, and buckets without a request as well.
func (a *askedOfBuckets) list() (list []bucketAsked) {
	if a.requests == nil {
		return nil
	}
	for _, u := range a.requests.Usage() {
		if strings.HasPrefix(u.Bucket, "file:") || u.Requests() == 0 {
			continue
		}
		list = append(list, bucketAsked{u.Bucket, u.Counts, u.Cost, u.Priced})
	}
	return list
}

// String returns the requests as a line for people.
func (b *bucketAsked) String() string {
	var kinds []string
	for _, k := range object.Kinds() {
		if n := b.Number(k); n > 0 {
			kinds = append(kinds, humanize.Comma(n)+" "+k.String())
		}
	}
	text := fmt.Sprintf("%s (%s), %s read", plural(b.Requests(), "request"), strings.Join(kinds, ", "),
		humanize.Bytes(uint64(b.BytesIn)))
	if b.BytesOut > 0 {
		text += ", " + humanize.Bytes(uint64(b.BytesOut)) + " written"
	}
	if b.Errors > 0 {
		text += fmt.Sprintf(", %s failed", humanize.Comma(b.Errors))
	}
	if b.Priced != "" {
		text += fmt.Sprintf(", $%s by the list prices of %s within its region", b.Cost.Total, b.Priced)
	}
	return text + ": " + b.Bucket
}
