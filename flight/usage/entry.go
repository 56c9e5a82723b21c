package usage

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Amount is a sum of resources. The zero value is no usage.
type Amount struct {
	Streams    int64   `json:"streams"`     // begun
	Rows       int64   `json:"rows"`        // sent
	Bytes      int64   `json:"bytes"`       // sent
	StoreBytes int64   `json:"store_bytes"` // of blobs read from the store for the rows sent
	RowsIn     int64   `json:"rows_in"`     // received
	BytesIn    int64   `json:"bytes_in"`    // received
	Seconds    float64 `json:"seconds"`     // duration of streams, summed
	// ProcessorSeconds are CPU seconds of operators.
	ProcessorSeconds float64 `json:"processor_seconds,omitempty"`
	// Requests are requests to buckets. Cost is their price, with that of the bytes.
	Requests int64        `json:"requests,omitempty"`
	Cost     object.Money `json:"cost_usd,omitempty"`
}

// Add adds b to a.
func (a *Amount) Add(b Amount) {
	a.Streams += b.Streams
	a.Rows += b.Rows
	a.Bytes += b.Bytes
	a.StoreBytes += b.StoreBytes
	a.RowsIn += b.RowsIn
	a.BytesIn += b.BytesIn
	a.Seconds += b.Seconds
	a.ProcessorSeconds += b.ProcessorSeconds
	a.Requests += b.Requests
	a.Cost += b.Cost
}

// Entry is the amount that a tenant has used of a dataset on a day.
type Entry struct {
	Day     string `json:"day"` // YYYY-MM-DD, UTC
	Tenant  string `json:"tenant"`
	Dataset string `json:"dataset"`
	Amount
}

// Other replaces the tenant and the dataset of amounts beyond Options.Entries. No tenant
// or dataset can have this name.
const Other = "(other)"

// Buckets is the dataset of requests to buckets. One request may serve several datasets,
// and only its tenant is known. No dataset can have this name.
const Buckets = "(buckets)"

// Filter selects entries. The zero value of a field matches all.
// Tenant and Dataset are exact names, not patterns.
type Filter struct {
	Tenant, Dataset string
	Since, Until    string // days, both included
}

func (f *Filter) match(e *Entry) bool {
	return (f.Tenant == "" || f.Tenant == e.Tenant) && (f.Dataset == "" || f.Dataset == e.Dataset) && f.days(e.Day)
}

func (f *Filter) days(day string) bool {
	return day >= f.Since && (f.Until == "" || day <= f.Until)
}

// Check returns a schema.FieldError for the first field that is not a day.
func (f *Filter) Check() error {
	for name, day := range map[string]string{"since": f.Since, "until": f.Until} {
		if day != "" && !isDay(day) {
			return &schema.FieldError{Field: name, Got: schema.Quote(day), Want: "a day in UTC, such as " +
				time.Now().UTC().Format(time.DateOnly)}
		}
	}
	return nil
}

// isDay accepts only the canonical form: file names are compared as strings.
func isDay(s string) bool {
	t, err := time.Parse(time.DateOnly, s)
	return err == nil && t.Format(time.DateOnly) == s
}

func dayOf(t time.Time) string { return t.UTC().Format(time.DateOnly) }

func sorted(list []Entry) []Entry {
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Dataset, b.Dataset))
	})
	return list
}

// check guards against a file that was renamed or copied to another day, which would be
// counted twice.
func (e *Entry) check(day string) error {
	if e.Day != day {
		return fmt.Errorf("%w: an entry of %s in the file of %s", schema.ErrDataLoss, schema.Quote(e.Day), day)
	}
	return nil
}
