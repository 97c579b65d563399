{{- define "flowkeep.image" -}}
{{ .Values.images.flowkeep }}:{{ .Values.images.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "flowkeep.memcachedImage" -}}
{{ .Values.images.memcached }}:{{ .Values.images.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "flowkeep.switchImage" -}}
{{ .Values.images.openvswitch }}:{{ .Values.images.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Labels of a part's objects; called with a dict of root and part. A selector has the first only: it can't be changed. */}}
{{- define "flowkeep.labels" -}}
app.kubernetes.io/name: {{ .part }}
app.kubernetes.io/part-of: flowkeep
app.kubernetes.io/version: {{ .root.Values.images.tag | default .root.Chart.AppVersion | quote }}
{{- end }}

{{- /* What is alike in all pods' specs; its first line is where the caller stands. */}}
{{- define "flowkeep.pull" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- /* Nodes that have no network yet are the ones that are to get one. */}}
{{- define "flowkeep.everyNode" -}}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
priorityClassName: {{ .Values.netplugin.priorityClassName }}
nodeSelector: {{ merge (dict "kubernetes.io/os" "linux") .Values.netplugin.nodeSelector | toJson }}
tolerations: [{operator: Exists}]
{{- include "flowkeep.pull" . }}
{{- end }}

{{- /* How many netmasters there are: as given; 0 is two, or one without an election or where helm finds one node only. */}}
{{- define "flowkeep.replicas" -}}
{{- $n := int .Values.netmaster.replicas }}
{{- if eq $n 0 }}
{{- $nodes := (lookup "v1" "Node" "" "").items | default list }}
{{- $n = ternary 1 2 (or (eq (len $nodes) 1) (not .Values.netmaster.leaderElection)) }}
{{- end }}
{{- $n }}
{{- end }}

{{- /* Probes of a program's --http-listen; called with a dict of port and root. Loopback is asked, where it always listens: on all addresses or there.
Starting may take as long as a full resolution or a switch's flows do. */}}
{{- define "flowkeep.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}, host: {{ include "flowkeep.probeHost" .root | quote }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}, host: {{ include "flowkeep.probeHost" .root | quote }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}, host: {{ include "flowkeep.probeHost" .root | quote }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
{{- define "flowkeep.probeHost" -}}
{{- $l := trimAll "[]" .Values.monitoring.listen -}}
{{- if has $l (list "" "0.0.0.0" "127.0.0.1") }}127.0.0.1{{ else if has $l (list "::" "::1") }}::1{{ else }}{{ $l }}{{ end }}
{{- end }}

{{- /* What may be taken from a container that is no root of its node. */}}
{{- define "flowkeep.confined" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* The variable GOMEMLIMIT of a container, called with its resources: 90 % of the memory limit, so that memory outside
of Go's heap fits into the rest. Nothing without a limit, or with one in exponent form: the program reads its cgroup. */}}
{{- define "flowkeep.memoryLimit" -}}
{{- $limit := (.limits | default dict).memory | default "" }}
{{- if not (kindIs "string" $limit) }}{{ $limit = printf "%.0f" (float64 $limit) }}{{ end }}
{{- if regexMatch "^[0-9.]+(Ki|Mi|Gi|Ti|k|M|G|T)?$" $limit }}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 }}
{{- $units = merge $units (dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) }}
{{- $unit := get $units (regexFind "[A-Za-z]*$" $limit) -}}
- {name: GOMEMLIMIT, value: "{{ mulf (regexFind "^[0-9.]+" $limit | float64) $unit 0.9 | floor | int64 }}"}
{{- end }}
{{- end }}

{{- /* Variables by which a container in its node's network reaches the API server, where apiServer.host is set. */}}
{{- define "flowkeep.apiServer" -}}
{{- with .Values.apiServer.host -}}
- {name: KUBERNETES_SERVICE_HOST, value: {{ . | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ $.Values.apiServer.port | quote }}}
{{- end }}
{{- end }}
