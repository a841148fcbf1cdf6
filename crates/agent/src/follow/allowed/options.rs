//! The accepted sections, plugins and options. An option is listed if it does not run a program, load code, write a file or connect to
//! a socket of this machine; for the few that name a file, the value is checked as well. So there is no `kafka` (librdkafka has options
//! that load libraries and run commands), no output that keeps its data in files (`file`, `s3`), and none that uses this machine's
//! credentials for AWS or Google (their settings can name a program).

/// Which options a section may have.
pub(super) struct Allowed {
    what: String,
    options: Vec<&'static str>,
}

impl Allowed {
    pub(super) fn check(&self, key: &str) -> Result<(), String> {
        if self.options.contains(&key) {
            return Ok(());
        }
        let why = if key == "plugins_file" { "; other plugins cannot be loaded" } else { "" };
        let Allowed { what, options } = self;
        Err(format!("{what} may not have the option `{}`{why}; allowed are {}", key.escape_debug(), options.join(", ")))
    }
}

/// The section's name as fluent-bit compares it.
pub(super) fn section(name: &str) -> Result<String, String> {
    let kind = name.to_ascii_lowercase();
    let known: Vec<&str> =
        PLUGINS.iter().map(|(kind, _, _)| *kind).chain(SECTIONS.iter().map(|(kind, _)| *kind)).collect();
    if known.contains(&kind.as_str()) {
        return Ok(kind);
    }
    Err(format!("the section `{}` is not allowed; allowed are {}", name.escape_debug(), known.join(", ")))
}

pub(super) fn is_plugin(section: &str) -> bool {
    PLUGINS.iter().any(|(kind, _, _)| *kind == section)
}

pub(super) fn of_section(section: &str) -> Allowed {
    let options =
        SECTIONS.iter().filter(|(kind, _)| *kind == section).flat_map(|(_, options)| options.split_whitespace());
    Allowed { what: format!("the section `{section}`"), options: options.collect() }
}

/// Plugins and options are known by their names in any case.
pub(super) fn of_plugin(section: &str, name: &str) -> Result<Allowed, String> {
    let (common, plugins) = PLUGINS
        .iter()
        .find(|(kind, _, _)| *kind == section)
        .map_or(("", &[][..]), |(_, common, plugins)| (*common, *plugins));
    let lower = name.to_ascii_lowercase();
    if let Some((plugin, own)) = plugins.iter().find(|(plugin, _)| *plugin == lower) {
        let secure = if section == "output" && !LOCAL.contains(plugin) { NETWORK } else { "" };
        let options = [*own, common, secure].into_iter().flat_map(str::split_whitespace).collect();
        return Ok(Allowed { what: format!("the {section} `{plugin}`"), options });
    }
    let allowed: Vec<&str> = plugins.iter().map(|(plugin, _)| *plugin).collect();
    Err(format!("the {section} `{}` is not allowed; allowed are {}", name.escape_debug(), allowed.join(", ")))
}

type Plugins = &'static [(&'static str, &'static str)];

/// Sections that name a plugin: what all of them may have, and each plugin's own.
const PLUGINS: [(&str, &str, Plugins); 3] = [
    (
        "input",
        "name tag alias log_level log_suppress_interval mem_buf_limit storage.type storage.pause_on_chunks_overlimit threaded",
        INPUTS,
    ),
    ("filter", "name match match_regex alias log_level log_suppress_interval", FILTERS),
    (
        "output",
        "name match match_regex alias log_level log_suppress_interval retry_limit workers no_multiplex storage.total_limit_size",
        OUTPUTS,
    ),
];

const SECTIONS: [(&str, &str); 6] = [
    (
        "service",
        "flush grace log_level daemon parsers_file streams_file scheduler.base scheduler.cap json.convert_nan_to_null dns.mode \
         dns.resolver dns.prefer_ipv4 dns.prefer_ipv6 storage.path storage.sync storage.checksum storage.max_chunks_up \
         storage.backlog.mem_limit storage.metrics storage.delete_irrecoverable_chunks storage.trim_files storage.inherit",
    ),
    (
        "parser",
        "name format regex time_key time_format time_offset time_keep time_strict time_system_timezone types decode_field \
         decode_field_as skip_empty_values logfmt_no_bare_keys",
    ),
    ("multiline_parser", "name type parser match_string negate key_content key_pattern key_group flush_timeout rule"),
    ("upstream", "name"),
    (
        "node",
        "name host port weight shared_key username password tls tls.verify tls.verify_hostname tls.ca_file tls.crt_file tls.key_file tls.key_passwd tls.vhost",
    ),
    ("stream_task", "name exec"),
];

/// Outputs without a connection.
const LOCAL: [&str; 2] = ["stdout", "null"];
const NETWORK: &str = "host port tls tls.verify tls.verify_hostname tls.debug tls.ca_file tls.ca_path tls.crt_file tls.key_file \
    tls.key_passwd tls.vhost tls.min_version tls.max_version tls.ciphers net.connect_timeout net.connect_timeout_log_error \
    net.dns.mode net.dns.resolver net.dns.prefer_ipv4 net.dns.prefer_ipv6 net.io_timeout net.keepalive \
    net.keepalive_idle_timeout net.keepalive_max_recycle net.max_worker_connections net.proxy_env_ignore net.source_address \
    net.tcp_keepalive net.tcp_keepalive_time net.tcp_keepalive_interval net.tcp_keepalive_probes";

const INPUTS: Plugins = &[
    (
        "tail",
        "path path_key exclude_path offset_key key read_from_head refresh_interval rotate_wait ignore_older \
         ignore_active_older_files skip_long_lines skip_empty_lines parser tag_regex static_batch_size event_batch_size \
         buffer_chunk_size buffer_max_size inotify_watcher watcher_interval progress_check_interval multiline multiline_flush \
         multiline.parser parser_firstline parser_1 parser_2 parser_3 docker_mode docker_mode_flush docker_mode_parser \
         unicode.encoding file_cache_advise db db.sync db.locking db.journal_mode db.compare_filename",
    ),
    (
        "systemd",
        "path max_fields max_entries systemd_filter systemd_filter_type read_from_tail lowercase strip_underscores db db.sync",
    ),
    ("cpu", "interval_sec interval_nsec pid"),
    ("mem", "interval_sec interval_nsec proc_name pid"),
    ("disk", "interval_sec interval_nsec dev_name"),
    ("netif", "interval_sec interval_nsec interface verbose test_at_init"),
    ("thermal", "interval_sec interval_nsec name_regex type_regex"),
    ("proc", "interval_sec interval_nsec proc_name alert mem fd"),
    (
        "dummy",
        "dummy metadata rate interval_sec interval_nsec samples copies start_time_sec start_time_nsec fixed_timestamp \
         flush_on_startup",
    ),
    ("fluentbit_metrics", "scrape_interval scrape_on_start"),
    (
        "node_exporter_metrics",
        "scrape_interval path.procfs path.sysfs path.rootfs metrics collector.cpu.scrape_interval \
         collector.cpufreq.scrape_interval collector.meminfo.scrape_interval collector.diskstats.scrape_interval \
         collector.filesystem.scrape_interval collector.uname.scrape_interval collector.stat.scrape_interval \
         collector.time.scrape_interval collector.loadavg.scrape_interval collector.vmstat.scrape_interval \
         collector.netdev.scrape_interval collector.filefd.scrape_interval filesystem.ignore_mount_point_regex \
         filesystem.ignore_filesystem_type_regex diskstats.ignore_device_regex",
    ),
];

const FILTERS: Plugins = &[
    ("grep", "regex exclude logical_op"),
    (
        "modify",
        "set add remove remove_wildcard remove_regex rename hard_rename copy hard_copy move_to_start move_to_end condition",
    ),
    ("record_modifier", "record remove_key allowlist_key whitelist_key uuid_key"),
    ("parser", "key_name parser preserve_key reserve_data"),
    ("rewrite_tag", "rule recursive_action emitter_name emitter_storage.type emitter_mem_buf_limit"),
    ("nest", "operation wildcard nest_under nested_under add_prefix remove_prefix"),
    ("throttle", "rate window interval print_status retain"),
    ("throttle_size", "rate window log_field name_field interval print_status window_time_duration hash_table_size"),
    (
        "multiline",
        "multiline.parser multiline.key_content mode buffer flush_ms debug_flush emitter_name emitter_storage.type \
         emitter_mem_buf_limit",
    ),
    ("type_converter", "int_key uint_key float_key str_key"),
    ("expect", "key_exists key_not_exists key_val_is_null key_val_is_not_null key_val_eq action result_key"),
    (
        "log_to_metrics",
        "metric_mode metric_name metric_namespace metric_subsystem metric_description value_field bucket add_label label_field \
         tag regex exclude discard_logs flush_interval_sec flush_interval_nsec emitter_name emitter_mem_buf_limit",
    ),
    ("sysinfo", "fluentbit_version_key os_name_key hostname_key os_version_key kernel_version_key"),
    ("stdout", ""),
];

const OUTPUTS: Plugins = &[
    (
        "forward",
        "upstream shared_key empty_shared_key self_hostname username password tag send_options require_ack_response compress \
         time_as_integer retain_metadata_in_forward_mode fluentd_compat add_option",
    ),
    (
        "http",
        "uri http_method http_user http_passwd proxy header header_tag allow_duplicated_headers compress format body_key \
         headers_key json_date_key json_date_format log_response_payload gelf_timestamp_key gelf_short_message_key \
         gelf_full_message_key gelf_host_key gelf_level_key",
    ),
    ("tcp", "format json_date_key json_date_format raw_message_key"),
    (
        "syslog",
        "mode syslog_format syslog_maxsize syslog_severity_key syslog_severity_preset syslog_facility_key \
         syslog_facility_preset syslog_hostname_key syslog_hostname_preset syslog_appname_key syslog_appname_preset \
         syslog_procid_key syslog_procid_preset syslog_msgid_key syslog_msgid_preset syslog_sd_key syslog_message_key \
         allow_longer_sd_id",
    ),
    ("es", SEARCH),
    ("opensearch", SEARCH),
    (
        "loki",
        "uri http_user http_passwd bearer_token header tenant_id tenant_id_key labels label_keys structured_metadata \
         structured_metadata_map_keys remove_keys drop_single_key line_format compress buffer_size",
    ),
    (
        "splunk",
        "splunk_token splunk_send_raw channel http_user http_passwd http_buffer_size http_debug_bad_request compress event_key \
         event_host event_source event_sourcetype event_sourcetype_key event_index event_index_key event_field",
    ),
    (
        "gelf",
        "mode gelf_tag_key gelf_short_message_key gelf_timestamp_key gelf_host_key gelf_full_message_key gelf_level_key \
         packet_size compress",
    ),
    (
        "kafka-rest",
        "topic partition message_key time_key time_key_format include_tag_key tag_key http_user http_passwd url_path \
         avro_http_header",
    ),
    (
        "influxdb",
        "database bucket org sequence_tag uri http_user http_passwd http_token http_header auto_tags tag_keys \
         tags_list_enabled tags_list_key strip_prefix add_integer_suffix",
    ),
    (
        "datadog",
        "apikey site compress provider header json_date_key include_tag_key tag_key dd_service dd_source dd_tags \
         dd_message_key dd_hostname",
    ),
    ("nrlogs", "base_uri api_key license_key compress"),
    ("azure", "customer_id shared_key log_type log_type_key time_key time_generated"),
    (
        "opentelemetry",
        "uri logs_uri metrics_uri traces_uri http2 grpc http_user http_passwd proxy header compress add_label batch_size \
         log_response_payload logs_body_key logs_body_key_attributes logs_metadata_key logs_severity_text_message_key \
         logs_severity_number_message_key",
    ),
    ("prometheus_remote_write", "uri http_user http_passwd proxy header compression add_label log_response_payload"),
    ("stdout", "format json_date_key json_date_format"),
    ("null", ""),
];

const SEARCH: &str = "path pipeline index type http_user http_passwd http_api_key cloud_id cloud_auth compress buffer_size \
    logstash_format logstash_prefix logstash_prefix_key logstash_prefix_separator logstash_dateformat time_key time_key_format \
    time_key_nanos include_tag_key tag_key generate_id id_key write_operation replace_dots suppress_type_name \
    current_time_index trace_output trace_error";
