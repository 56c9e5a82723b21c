package command

import (
	"errors"

	"bowstring/fetch/lineage"
	"bowstring/flight/audit"
	"bowstring/flight/auth"
	"bowstring/flight/policy"
	"bowstring/flight/usage"
)

// guardFiles are what is read again when it changes; nil where there is none.
type guardFiles struct {
	rules   *auth.File[policy.Rules]
	tenants *auth.File[policy.Tenants]
}

// guards opens the files of rules and tenants, the audit log, the book of what is used and the record of
// what is handed out, where there are any. The caller closes the latter three.
func (c *ServeCmd) guards(app *App, l *limits) (files guardFiles, err error) {
	if c.Rules != "" {
		if files.rules, err = auth.OpenFile("rules", c.Rules, policy.Parse,
			func(rs *policy.Rules) int { return len(rs.List()) }, l.flight.Sources, app.Log); err != nil {
			return files, err
		}
		l.flight.Rules = files.rules.Current()
	}
	if c.Tenants != "" {
		if files.tenants, err = auth.OpenFile("tenants", c.Tenants, policy.ParseTenants,
			func(ts *policy.Tenants) int { return len(ts.List()) }, l.flight.Sources, app.Log); err != nil {
			return files, err
		}
		l.flight.Tenants = files.tenants.Current()
	}
	if c.Usage != "" {
		if l.flight.Usage, err = usage.Open(usage.Options{Dir: c.Usage, Keep: c.UsageKeep,
			Logger: app.Log}); err != nil {
			return files, err
		}
	}
	if c.Lineage != "" {
		if l.lineage, err = lineage.Open(lineage.Options{Dir: c.Lineage, MaxBytes: int64(c.LineageBytes),
			Logger: app.Log}); err != nil {
			return files, errors.Join(err, l.closeRecords())
		}
	}
	if c.Audit != "" {
		log, err := audit.Open(audit.Options{Path: c.Audit, MaxBytes: int64(c.AuditSize), Keep: c.AuditKeep,
			SyncReads: c.AuditSync, Logger: app.Log})
		if err != nil {
			return files, errors.Join(err, l.closeRecords())
		}
		l.flight.Audit = log
	}
	return files, nil
}

// closeRecords closes what was opened of the book and the record.
func (l *limits) closeRecords() (err error) {
	if l.flight.Usage != nil {
		err = l.flight.Usage.Close()
	}
	return errors.Join(err, l.lineage.Close())
}
