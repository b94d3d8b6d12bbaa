// Package licence finds the licences of Go modules in the module cache.
//
// It owns which files of a module are legal texts, and how a text is recognised. It refuses to
// decide whether a licence permits anything. Its functions may be called from any goroutine.
package licence

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Legal matches the names of files that must travel with a program.
var Legal = regexp.MustCompile(`(?i)^(licen[cs]e|notice|copying|patents|copyright)([-_.].*)?$`)

// Dir is where a module, PATH@VERSION, is in the module cache: capitals are written as ! and the
// small letter (golang.org/ref/mod, module cache).
func Dir(cache, module string) string {
	return filepath.Join(cache, regexp.MustCompile(`[A-Z]`).ReplaceAllStringFunc(module, func(c string) string { return "!" + strings.ToLower(c) }))
}

// IDs are the SPDX identifiers of the licences in a module's folder, sorted. Unrecognised texts
// have none.
func IDs(dir string) ([]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading a module: %w", err)
	}
	var ids []string
	for _, f := range files {
		if f.IsDir() || !Legal.MatchString(f.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading a licence: %w", err)
		}
		ids = append(ids, Of(string(text))...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Of are the identifiers of the licences in a text. A phrase that only that licence has stands for
// it.
func Of(text string) (ids []string) {
	text = strings.Join(strings.Fields(text), " ")
	has := func(phrase string) bool { return strings.Contains(text, phrase) }
	for _, known := range []struct {
		is bool
		id string
	}{
		{has("Apache License Version 2.0, January 2004"), "Apache-2.0"},
		{has("Permission is hereby granted, free of charge, to any person obtaining a copy"), "MIT"},
		{has("Redistributions in binary form must reproduce") && (has("Neither the name") || has("to endorse or promote")), "BSD-3-Clause"},
		{has("Redistributions in binary form must reproduce") && !has("Neither the name") && !has("to endorse or promote"), "BSD-2-Clause"},
		{has("Permission to use, copy, modify, and/or distribute this software for any purpose") || has("Permission to use, copy, modify, and distribute this software for any purpose"), "ISC"},
		{has("Mozilla Public License Version 2.0") || has("Mozilla Public License, version 2.0"), "MPL-2.0"},
	} {
		if known.is {
			ids = append(ids, known.id)
		}
	}
	return ids
}
