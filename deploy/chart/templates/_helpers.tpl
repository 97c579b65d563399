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
