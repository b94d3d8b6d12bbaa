package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
)

// writeTable writes tokens for people.
func writeTable(w io.Writer, infos []join.TokenInfo, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, "ID\tEXPIRES (UTC)\tUSES LEFT\tNODE\tDESCRIPTION")
	for _, i := range infos {
		expires := i.Expires.Format("2006-01-02 15:04:05")
		if !now.Before(i.Expires) {
			expires += " (expired)"
		}
		node := string(i.Node)
		if node == "" {
			node = "any"
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%s\n", i.ID, expires, i.UsesLeft, node, i.Description)
	}
	return tw.Flush()
}

// writeJSON writes tokens for programs.
func writeJSON(w io.Writer, infos []join.TokenInfo) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(infos)
}
