// Swagger UI over this gateway's own description. Nothing is loaded from elsewhere and nothing is kept: who reloads authorizes again.
SwaggerUIBundle({
  url: "/-/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  docExpansion: "list",
  filter: true,
  persistAuthorization: false,
  syntaxHighlight: { theme: "idea" },
  tryItOutEnabled: true,
  validatorUrl: null,
});
