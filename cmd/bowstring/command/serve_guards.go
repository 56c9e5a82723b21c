package command

import (
	"errors"

	"bowstring/fetch/lineage"
	"bowstring/flight"
	"bowstring/flight/audit"
	"bowstring/flight/usage"
)

// guardFiles are what is read again when it changes; nil where there is none.
type guardFiles struct {
	rules   *flight.RulesFile
	tenants *flight.TenantsFile
}

// guards opens the files of rules and tenants, the audit log, the book of what is used and the record of
// what is handed out, where there are any. The caller closes the latter three.
func (c *ServeCmd) guards(app *App, l *limits) (files guardFiles, err error) {
	if c.Rules != "" {
		if files.rules, err = flight.OpenRules(c.Rules, l.flight.Sources, app.Log); err != nil {
			return files, err
		}
		l.flight.Rules = files.rules.Rules()
	}
	if c.Tenants != "" {
		if files.tenants, err = flight.OpenTenants(c.Tenants, l.flight.Sources, app.Log); err != nil {
			return files, err
		}
		l.flight.Tenants = files.tenants.Tenants()
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
