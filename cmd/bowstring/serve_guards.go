package main

import (
	"errors"

	"bowstring/flight"
	"bowstring/flight/audit"
	"bowstring/flight/usage"
)

// guardFiles are what is read again when it changes; nil where there is none.
type guardFiles struct {
	rules   *flight.RulesFile
	tenants *flight.TenantsFile
}

// guards opens the files of rules and tenants, the audit log and the book of what is used,
// where there are any. The caller closes the latter two.
func (c *ServeCmd) guards(app *App, l *limits) (files guardFiles, err error) {
	if c.Rules != "" {
		if files.rules, err = flight.OpenRules(c.Rules, app.Log); err != nil {
			return files, err
		}
		l.flight.Rules = files.rules.Rules
	}
	if c.Tenants != "" {
		if files.tenants, err = flight.OpenTenants(c.Tenants, app.Log); err != nil {
			return files, err
		}
		l.flight.Tenants = files.tenants.Tenants
	}
	if c.Usage != "" {
		if l.flight.Usage, err = usage.Open(usage.Options{Dir: c.Usage, Keep: c.UsageKeep, Logger: app.Log}); err != nil {
			return files, err
		}
	}
	if c.Audit != "" {
		log, err := audit.Open(audit.Options{Path: c.Audit, MaxBytes: int64(c.AuditSize), Keep: c.AuditKeep, Logger: app.Log})
		if err != nil {
			if l.flight.Usage != nil {
				err = errors.Join(err, l.flight.Usage.Close())
			}
			return files, err
		}
		l.flight.Audit = log
	}
	return files, nil
}
