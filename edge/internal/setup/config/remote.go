package config

import (
	"slices"
	"strings"
)

// remote are the fields of edgecore.yaml that a NodeOperation of type Config may change, with all
// that is below them. No hook, program, file, key, source of artefacts, protected network or server
// is among them: a user who may change these could become root on the device, or lose it
// permanently.
func remote() []string {
	return []string{
		"log.verbosity", "health.listen",
		"modules.edgeHub.transport", "modules.edgeHub.websocket.port", "modules.edgeHub.quic.port", "modules.edgeHub.keepalive", "modules.edgeHub.idleTimeout",
		"modules.edgeHub.backoffMin", "modules.edgeHub.backoffMax",
		"modules.metaManager.eventLimit",
		"modules.edged.reportEvent", "modules.edged.devicePluginTimeout",
		"modules.drain.evict", "modules.drain.attempts", "modules.drain.interval", "modules.drain.timeout", "modules.drain.proceedAfter",
		"modules.drain.evictInterval", "modules.drain.retryInterval", "modules.drain.hooks.timeout",
		"modules.services.enable", "modules.names.enable", "modules.site.enable", "modules.tunnel.subresources",
		"modules.apps.enable", "modules.appLogs.enable", "modules.appLogs.interval", "modules.clusterStats.enable",
	}
}

// NotRemote returns the fields of a merge patch of edgecore.yaml that only the device's operator
// may change, in order.
func NotRemote(patch map[string]any) []string {
	allowed := remote()
	var bad []string
	var walk func(at string, value any)
	walk = func(at string, value any) {
		if slices.ContainsFunc(allowed, func(r string) bool { return at == r || strings.HasPrefix(at, r+".") }) {
			return
		}
		fields, ok := value.(map[string]any)
		if !ok || len(fields) == 0 {
			bad = append(bad, at)
			return
		}
		for name, v := range fields {
			walk(at+"."+name, v)
		}
	}
	for name, v := range patch {
		walk(name, v)
	}
	slices.Sort(bad)
	return bad
}
