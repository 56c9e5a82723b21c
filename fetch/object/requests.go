package object

import (
	"context"
	"slices"
)

// Requests counts, paces and prices the requests of a process to its buckets. A process
// has one, and passes it to [Open]. It is safe for concurrent use.
type Requests struct {
	Meter  *Meter
	Budget *Budget
	// Prices are those of requests, Transfer the way of the bytes.
	Prices   *Prices
	Transfer Transfer
}

// RequestsOptions tunes Requests. The zero value of each field means its default.
type RequestsOptions struct {
	// Tenant names the account that a request is charged to. Default: one for all.
	Tenant func(context.Context) string
	// Sharers is how many nodes use the buckets: see [BudgetOptions].
	Sharers func() int
	// Prices. Default [ListPrices].
	Prices *Prices
	// Transfer. Default [InRegion].
	Transfer Transfer
}

// NewRequests returns Requests.
func NewRequests(o RequestsOptions) *Requests {
	if o.Prices == nil {
		o.Prices = ListPrices()
	}
	if o.Transfer == "" {
		o.Transfer = InRegion
	}
	return &Requests{
		Meter:  NewMeter(o.Tenant),
		Budget: NewBudget(BudgetOptions{Tenant: o.Tenant, Sharers: o.Sharers}),
		Prices: o.Prices, Transfer: o.Transfer,
	}
}

// Wrap returns the bucket with its requests counted and paced. A request that waits for
// its turn is not counted yet.
func (r *Requests) Wrap(b Bucket) Bucket { return Budgeted(Metered(b, r.Meter), r.Budget) }

// Price is the price in dollars of a request for bytes of a bucket, and of one of these
// bytes; ok is false if it is not known.
func (r *Requests) Price(bucket string) (request, each float64, ok bool) {
	p, _ := r.Prices.Find(bucket)
	if p == nil {
		return 0, 0, false
	}
	request, each = p.Each(r.Transfer)
	return request, each, true
}

// Usage is the use of a bucket by this process, with its cost.
type Usage struct {
	Bucket string `json:"bucket"` // its URL
	Counts
	// Cost is computed from list prices. It is zero if the bucket has no known price.
	Cost Bill `json:"cost_usd"`
	// Priced names the prices that were used, such as "s3 us-east-1". It ends with "
	// (assumed)" if the prices of the bucket's own region are not known, and is "" if the
	// bucket has no price.
	Priced    string        `json:"priced,omitempty"`
	FirstByte FirstBytes    `json:"-"`
	FirstP50  int64         `json:"first_byte_p50_us"`
	FirstP99  int64         `json:"first_byte_p99_us"`
	Tenants   []UsageTenant `json:"tenants"`
	Limits    []Limit       `json:"limits"`
}

// UsageTenant is the use of a bucket by a tenant.
type UsageTenant struct {
	Tenant string `json:"tenant"`
	Counts
	Cost Bill `json:"cost_usd"`
}

// Usage returns the use of each bucket so far, in ascending order of their URLs.
func (r *Requests) Usage() []Usage {
	var list []Usage
	first := r.Meter.FirstBytes()
	for _, c := range r.Meter.Counts() {
		if n := len(list); n == 0 || list[n-1].Bucket != c.Bucket {
			f := first[c.Bucket]
			list = append(list, Usage{Bucket: c.Bucket, FirstByte: f, FirstP50: f.Quantile(0.5).Microseconds(),
				FirstP99: f.Quantile(0.99).Microseconds(), Limits: []Limit{}})
		}
		u := &list[len(list)-1]
		u.Counts.Add(c.Counts)
		price, _ := r.Prices.Find(c.Bucket)
		u.Tenants = append(u.Tenants, UsageTenant{c.Tenant, c.Counts, Cost(c.Counts, price, r.Transfer)})
	}
	for i := range list {
		u := &list[i]
		price, exact := r.Prices.Find(u.Bucket)
		u.Cost = Cost(u.Counts, price, r.Transfer)
		if price != nil {
			u.Priced = price.Name(exact)
		}
	}
	for _, l := range r.Budget.Limits() {
		if i := slices.IndexFunc(list, func(u Usage) bool { return u.Bucket == l.Bucket }); i >= 0 {
			list[i].Limits = append(list[i].Limits, l)
		}
	}
	return list
}
