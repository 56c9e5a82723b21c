package main

import (
	"bowstring/flight"
	"bowstring/flight/audit"
)

// guards opens the file of rules and the audit log, where there are any. The caller closes
// the latter.
func (c *ServeCmd) guards(app *App, l *limits) (*flight.RulesFile, error) {
	var file *flight.RulesFile
	if c.Rules != "" {
		var err error
		if file, err = flight.OpenRules(c.Rules, app.Log); err != nil {
			return nil, err
		}
		l.flight.Rules = file.Rules
	}
	if c.Audit != "" {
		log, err := audit.Open(audit.Options{Path: c.Audit, MaxBytes: int64(c.AuditSize), Keep: c.AuditKeep, Logger: app.Log})
		if err != nil {
			return nil, err
		}
		l.flight.Audit = log
	}
	return file, nil
}
