package command

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/flight/usage"
)

// UsageCmd is bowstring usage.
type UsageCmd struct {
	Tenant  string `placeholder:"NAME" help:"Of this tenant only (default: all that you may see)."`
	Dataset string `placeholder:"NAME" help:"Of this dataset only (default: all)."`
	Since   string `placeholder:"DAY" help:"From this day on, in UTC, such as 2026-03-01 (default: the last 30 days)."`
	Until   string `placeholder:"DAY" help:"Up to this day, which is included (default: today)."`
	JSON    bool   `name:"json" help:"Print a JSON array."`
}

// Help says who sees what.
func (*UsageCmd) Help() string {
	return `What tenants have used of a server that runs with --usage, by day (UTC), tenant and dataset. A caller sees what its own
tenant has used; who has the right admin on all datasets sees everything. What streams that run have used is included.`
}

// Run prints the usage by day, tenant and dataset. Without --since it is of 30 days,
// including today.
func (c *UsageCmd) Run(ctx context.Context, app *App) error {
	// The server applies the filters, and the caller's rights: it returns only tenants
	// that the caller may see.
	body := map[string]string{}
	since := c.Since
	if since == "" {
		// Days are in UTC, as on the server. 29 days before today and today are 30.
		since = time.Now().UTC().AddDate(0, 0, -29).Format(time.DateOnly)
	}
	for name, v := range map[string]string{"tenant": c.Tenant, "dataset": c.Dataset, "since": since, "until": c.Until} {
		if v != "" {
			body[name] = v
		}
	}
	list, err := askAll[usage.Entry](ctx, app, "usage", body)
	if err != nil {
		return err
	}
	// A negative count would be a bug of the server; max keeps it from becoming a huge
	// number.
	out := tableOf("DAY", "TENANT", "DATASET", ">STREAMS", ">ROWS", ">SENT", ">FROM STORE", ">RECEIVED", ">HOURS",
		">REQUESTS", ">COST")
	for _, e := range list {
		out.add(e.Day, printable(e.Tenant), printable(e.Dataset), strconv.FormatInt(e.Streams, 10),
			humanize.Comma(e.Rows),
			humanize.IBytes(uint64(max(e.Bytes, 0))), humanize.IBytes(uint64(max(e.StoreBytes, 0))),
			humanize.IBytes(uint64(max(e.BytesIn, 0))),
			fmt.Sprintf("%.1f", e.Seconds/3600), humanize.Comma(e.Requests), dollars(e.Cost))
	}
	return app.show(c.JSON, list, out)
}
